"""Table 1 of SelSync to convergence: an image model, and a language model with its perplexity."""

import math

import pytest

from polyrhythm.telemetry.result import EvalPoint, RunResult
from polyrhythm_experiments.reproduce import Lab, claims
from polyrhythm_experiments.reproduce.selsync import language, settings
from polyrhythm_experiments.reproduce.selsync.converged import converged_section
from polyrhythm_experiments.reproduce.selsync.converged_causes import CHANGED, DECAYED, FEWER, LARGER
from polyrhythm_experiments.reproduce.selsync.language import (
    AMONG_MANY,
    DESCENT,
    OFTEN,
    RARELY,
    SLOW,
    bests,
    language_section,
    language_trials,
    many_place,
    seen_note,
)
from polyrhythm_experiments.reproduce.selsync.settings import converged_trials, place


def run_of(levels: list[float], step_s: float, status: str = "ok") -> RunResult:
    """A run whose accuracy, and whose log-likelihood but for 3, has these levels, 20 evaluations each."""
    values = [level for level in levels for _ in range(20)]
    curve = [EvalPoint(step_s * k, 10 * k, k, value, 3.0 - value) for k, value in enumerate(values, 1)]
    return RunResult(
        scenario="s", policy="p", seed=0, workers=2, batch_size=1, curve=curve, best_accuracy=max(values), lssr=0.5,
        duration_s=step_s * len(values), status="diverged" if status == "diverged" else "ok",
    )  # fmt: skip


def test_every_setting_has_every_method_at_a_fixed_rate(quick: Lab) -> None:
    found = converged_trials(quick)
    assert len(found) == len(settings.SETTINGS) * len(settings.METHODS) == 16
    configs = [trial.scenario.training for trial in found.values()]
    assert {config.schedule for config in configs if config} == {"constant"}
    assert {(config.model, config.optimizer) for config in configs if config} == {
        ("mlp", "SGD"),
        ("mlp", "Adam"),
        ("cnn", "SGD"),
        ("cnn", "Adam"),
    }
    assert {trial.until for trial in found.values()} == {"accuracy"}
    fewer = found[place("CNN, SGD", "SelSync delta = 0.3")]
    assert (fewer.policy, fewer.scenario.workers) == ("selsync:0.3,factor=0.16", 4)
    assert found[place("CNN, SGD", "BSP")].policy == "bsp"


def test_methods_are_compared_where_each_has_converged() -> None:
    base, ours = [run_of([0.8, 0.8], step_s=10.0)], [run_of([0.81, 0.82, 0.82], step_s=1.0)]
    runs = {
        place(title, name): ours if name.startswith("SelSync") else base
        for title in settings.SETTINGS
        for name in settings.METHODS
    }
    runs |= {place(title, name): base for title in settings.SETTINGS for name in ("slower", "seldom")}
    runs |= {f"{place(CHANGED, name)}/decayed": base for name in DECAYED}
    runs |= {place(CHANGED, what): ours for what in (FEWER, LARGER)}
    section = converged_section(runs)
    found = {row.what: row for row in claims(section)}
    assert str(found["accuracy less BSP's, MLP, SGD, delta 0.3"].ours) == "+1.0 pt"
    assert found["accuracy less BSP's, MLP, SGD, delta 0.3"].why.startswith("The fixed rate: against BSP at 1/4")
    assert str(found["sooner at convergence, MLP, Adam, delta 0.5"].ours) == "10x"
    assert str(found["steps to convergence over BSP's, MLP, Adam, delta 0.5"].ours) == "1x"
    assert str(found["accuracy, FedAvg (1, 0.25), less BSP's, CNN, SGD"].ours) == "+0.0 pt"
    assert section.grids[2].rows[0] == ["BSP", "0.5", "80.0 %", "+0.0 pt", "100", "1x"]


def test_the_language_model_is_compared_by_perplexity() -> None:
    base, ours = [run_of([1.0, 1.0], step_s=10.0)], [run_of([1.0, 1.0], step_s=5.0)]
    runs = {f"language/{name}": ours if name.startswith("SelSync") else base for name in language.METHODS}
    runs |= {f"language/{name}": base for name in (SLOW, RARELY, *OFTEN)}
    runs |= {many_place(name): base if name == "BSP" else ours for name in AMONG_MANY}
    runs |= {f"language/{DESCENT}": [run_of([0.0], step_s=1.0, status="diverged")]}
    section = language_section(runs)
    found = {row.what: str(row.ours) for row in claims(section)}
    assert found["perplexity less BSP's, 4 workers, delta = 0.3"] == "+0.00"
    assert found["sooner at convergence, 4 workers, LSSR = 0.725"] == "2x"
    assert found["sooner at convergence, 16 workers, delta = 0.5"] == "2x"
    whys = {row.what: row.why for row in claims(section)}
    assert whys["steps to convergence over BSP's, 4 workers, delta = 0.3"].startswith("It has BSP's result in 1x")
    assert whys["perplexity less BSP's, 4 workers, LSSR = 0.725"].endswith("between the best it is +0.00.")
    table, many = section.grids[-2:]
    assert [row[0] for row in many.rows] == list(AMONG_MANY)
    assert table.rows[0][2] == f"{math.exp(2.0):.1f}"
    assert table.rows[-1][:3] == [DESCENT, "0.5", "diverged"]
    (chart,) = section.charts
    assert list(chart.figure.data[0].y)[-1] == pytest.approx(math.exp(2.0))


def test_a_run_that_seldom_exchanges_is_not_seen_to_converge() -> None:
    base, ours = [run_of([1.0, 1.0], step_s=10.0)], [run_of([1.0], step_s=5.0)]
    del ours[0].curve[4:]
    assert seen_note(ours, base).startswith(
        "The exchanges: evaluations of a seed are 4 to 4, the best perplexity is 7.4,"
    )
    del ours[0].curve[:]
    assert bests(ours) == [None]


def test_the_language_model_learns_from_words(quick: Lab) -> None:
    found = language_trials(quick)
    configs = [trial.scenario.training for trial in found.values()]
    assert {(config.task, config.tokens) for config in configs if config} == {("text", "word")}
    (run,) = quick.run({"one": found["language/BSP"]})["one"]
    assert run.curve[-1].loss > 0
