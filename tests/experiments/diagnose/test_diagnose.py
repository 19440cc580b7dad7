"""A look inside a run changes nothing about it, and shows what the run did."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner, Result

from polyrhythm.cli.app import app
from polyrhythm.errors import PolyrhythmError
from polyrhythm.policies import parse_policy
from polyrhythm.sim import load_scenario, simulate
from polyrhythm_experiments.diagnose import Diagnosis, diagnose
from polyrhythm_experiments.diagnose.charts import change_curves, list_charts, rank_correlation

SMALL = {
    "devices.0.count": "3",
    "training.epochs": "1",
    "training.train_samples": "200",
    "training.test_samples": "100",
    "training.eval_every_samples": "60",
    "training.learning_rate": "0.05",
}


@pytest.fixture(scope="module")
def diagnosis() -> Diagnosis:
    return diagnose(load_scenario("uniform", SMALL), delta=0.05, batches=2)


@pytest.mark.parametrize("name", ["BSP", "PA", "GA"])
def test_looking_changes_nothing(diagnosis: Diagnosis, name: str) -> None:
    spec = {"BSP": "bsp", "PA": "selsync:0.05", "GA": "selsync:0.05,aggregate=gradients"}[name]
    plain = simulate(load_scenario("uniform", SMALL), parse_policy(spec))
    seen = diagnosis.runs[name]
    assert [(m.samples, m.accuracy) for m in seen.probe.moments] == [(p.samples, p.accuracy) for p in plain.curve]
    assert (seen.result.updates, seen.result.steps) == (plain.updates, plain.steps)


def test_the_weights_are_those_of_the_moment(diagnosis: Diagnosis) -> None:
    layer = diagnosis.layers[0]
    moments = diagnosis.runs["BSP"].probe.moments
    assert len({moment.weights[layer].sum().item() for moment in moments}) == len(moments)
    ends = {name: seen.probe.moments[-1] for name, seen in diagnosis.runs.items()}
    assert torch.equal(ends["BSP"].weights[layer], ends["BSP"].replica[layer])
    assert not torch.equal(ends["GA"].weights[layer], ends["GA"].replica[layer])


def test_delta_is_the_signal_of_the_policy(diagnosis: Diagnosis) -> None:
    """What the probe computes from PA's reports agrees with when PA synchronised."""
    probe, workers = diagnosis.runs["PA"].probe, 3
    deltas = [change.delta for change in probe.changes]
    rounds = [deltas[start : start + workers] for start in range(0, len(deltas) - workers + 1, workers)]
    flagged = sum(max(each) >= diagnosis.delta for each in rounds)
    assert (
        abs(diagnosis.runs["PA"].result.updates - 1 - flagged) <= 1
    )  # the first step has no Delta, the last may be short


def test_every_figure_has_numbers_and_one_key(diagnosis: Diagnosis) -> None:
    charts = [chart for group in list_charts(diagnosis).values() for chart in group]
    assert len({chart.key for chart in charts}) == len(charts) == 2 * len(diagnosis.layers) + 2
    assert all(chart.rows and chart.description and len(chart.figure.data) for chart in charts)
    samples, largest, median = change_curves(diagnosis)
    assert (largest >= median).all()
    assert (np.diff(samples) > 0).all()


def test_rank_correlation_is_about_order_alone() -> None:
    assert rank_correlation([1, 2, 3], [1, 10, 1000]) == 1.0
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == -1.0
    assert rank_correlation([1, 1], [1, 2]) == 0.0


def test_what_cannot_be_diagnosed_is_named() -> None:
    with pytest.raises(PolyrhythmError, match="trains nothing"):
        diagnose(load_scenario("uniform", {"training": "none"}))
    with pytest.raises(PolyrhythmError, match=r"no parameter '1.wait': did you mean 1.weight"):
        diagnose(load_scenario("uniform", SMALL), layers=["1.wait"])


@pytest.fixture
def call() -> Callable[..., Result]:
    sets = [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
    return lambda *words: CliRunner().invoke(app, ["diagnose", "uniform", *sets, "--batches", "2", *words])


def test_the_command_prints_and_writes(call: Callable[..., Result], tmp_path: Path) -> None:
    done = call("--layers", "3.weight", "--json", str(tmp_path / "d.json"), "--report", str(tmp_path / "d.html"))
    assert done.exit_code == 0, done.output
    assert "selsync:0.25,aggregate=gradients" in done.output
    assert "Gradient of 3.weight: Density" in done.output
    values = json.loads((tmp_path / "d.json").read_text())
    assert values["layers"] == ["3.weight"]
    assert len(values["moments"]) == len(values["runs"]["BSP"]["curve"])
    assert 'id="weights-3-weight"' in (tmp_path / "d.html").read_text(encoding="utf-8")


def test_an_unknown_layer_is_one_line(call: Callable[..., Result]) -> None:
    done = call("--layers", "x")
    assert (done.exit_code, len(done.stderr.splitlines())) == (2, 1)
