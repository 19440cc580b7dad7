"""The runs that test the reasons at convergence, and what the page on SelSync says of them."""

import pytest

from polyrhythm.telemetry.result import EvalPoint, RunResult
from polyrhythm_experiments.reproduce import Lab
from polyrhythm_experiments.reproduce.selsync.converged_causes import (
    CHANGED,
    DECAYED,
    FEWER,
    LARGER,
    by_change,
    converged_cause_trials,
    end_scores,
    level_note,
    levels,
    often_note,
    rate_note,
    seldom_note,
    step_note,
    step_s,
)
from polyrhythm_experiments.reproduce.selsync.settings import SETTINGS, place


def run_of(levels: list[float], step_s: float = 1.0, lssr: float = 0.0) -> RunResult:
    """A run whose accuracy has these levels, 20 evaluations each; a step of both workers is 10 samples."""
    values = [level for level in levels for _ in range(20)]
    curve = [EvalPoint(step_s * k, 10 * k, k, value, 3.0 - value) for k, value in enumerate(values, 1)]
    return RunResult(
        scenario="s", policy="p", seed=0, workers=2, batch_size=5, curve=curve, lssr=lssr, steps=2 * len(values),
        duration_s=step_s * len(values),
    )  # fmt: skip


BASE, OURS = [run_of([0.8, 0.8], 4.0)], [run_of([0.81, 0.82], lssr=0.75)]


def runs_of() -> dict[str, list[RunResult]]:
    found = {place(title, name): BASE for title in SETTINGS for name in ("BSP", "slower")}
    found |= {place(title, name): OURS for title in SETTINGS for name in ("seldom", "SelSync delta = 0.3")}
    found |= {f"{place(CHANGED, name)}/decayed": BASE if name == "BSP" else OURS for name in DECAYED}
    return found | {place(CHANGED, what): OURS for what in (FEWER, LARGER)}


def test_a_reason_has_its_runs(quick: Lab) -> None:
    found = converged_cause_trials(quick)
    assert set(found) == {place for place in runs_of() if not place.endswith(("/BSP", "/SelSync delta = 0.3"))}
    configs = {key: trial.scenario.training for key, trial in found.items()}
    assert {key: config.learning_rate for key, config in configs.items() if config and key.endswith("slower")} == {
        place("MLP, SGD", "slower"): 0.005,
        place("MLP, Adam", "slower"): 0.0005,
        place("CNN, SGD", "slower"): 0.005,
        place("CNN, Adam", "slower"): 0.0005,
    }
    assert {key for key, trial in found.items() if trial.until is None} == {k for k in found if k.endswith("/decayed")}
    fewer, larger = (found[place(CHANGED, what)] for what in (FEWER, LARGER))
    assert fewer.scenario.workers == 4
    assert fewer.policy == larger.policy == "selsync:0.3,factor=0.16"
    assert larger.scenario.batch_size == 128


def test_a_reason_is_told_from_its_runs() -> None:
    runs = runs_of()
    assert often_note(runs).endswith("has 0.75, with 4 workers 0.75, with mini-batches of 128 0.75.")
    assert rate_note(runs, CHANGED, "SelSync delta = 0.3") == (
        "The fixed rate: against BSP at 1/4 of the rate +1.0 pt, with a tenth of the rate from 75 % of 2,000 steps for "
        "both +2.0 pt."
    )
    assert rate_note(runs, "MLP, Adam", "SelSync delta = 0.3").endswith("rate +1.0 pt.")
    assert seldom_note(runs, "MLP, Adam") == "The exchanges: with E = 2 instead, an LSSR of 0.75, it is +1.0 pt."
    assert by_change(runs).rows[0] == ["MLP, SGD, BSP at 1/4 of the rate", "0", "80.0 %"]


def test_methods_are_compared_where_they_first_have_bsps_result() -> None:
    assert levels(BASE, BASE) == [(100.0, 40.0)]
    assert levels(OURS, BASE) == [(100.0, 10.0)]
    assert level_note(OURS, BASE) == "It has BSP's result in 1x the steps, 4x sooner."
    assert level_note([run_of([0.7])], BASE) == "It has BSP's result with 0 of 1 seeds."


def test_a_step_and_an_end_are_those_of_the_run() -> None:
    assert step_s(BASE) == [pytest.approx(4.0)]
    assert step_note(OURS, BASE) == "A step of BSP takes 4x as long."
    assert end_scores(OURS) == [pytest.approx(0.82)]
    gone = run_of([0.1])
    gone.status = "diverged"
    assert end_scores([gone]) == [None]
