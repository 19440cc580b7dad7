"""Comparisons of policies on instances of the learner's families."""

from types import SimpleNamespace
from typing import Any

from polyrhythm.rl.instances import Family, draw
from polyrhythm_experiments.reproduce.rlp.evaluation import compare, instances, measure_all, spec_for
from polyrhythm_experiments.reproduce.rlp.insight import typical

TINY = Family("tiny", hidden=(0,), learning_rate=0.6, target=0.6, workers=(3,))


def test_comparisons() -> None:
    ratio = compare([3.0, 1.0], [1.0, 1.0])
    assert (ratio.value, ratio.wins, ratio.losses) == (2.0, 1, 0)
    assert 1.0 <= ratio.low <= ratio.value <= ratio.high <= 3.0
    assert spec_for("k-sync:{k}", 2) == "k-sync:1"


def test_a_job_is_measured_the_same_on_any_core() -> None:
    pairs = [(draw(TINY, 3), spec) for spec in ("asp", "k-group:{k}")]
    one, two = (measure_all(pairs, jobs=jobs) for jobs in (1, 2))
    assert one == two
    assert one[0].duration_s == one[0].time_to_target_s


def test_the_job_that_is_shown_is_one_in_which_the_policy_acts() -> None:
    runs = {"asp": [100.0] * 6, "rlp": [100.0, 90.0, 100.0, 100.0, 80.0, 100.0]}
    results: Any = {"staleness": {spec: [SimpleNamespace(duration_s=each) for each in runs[spec]] for spec in runs}}
    acts = [instances("staleness", 6)[at] for at in (1, 4)]
    assert typical(results) == max(acts, key=lambda each: each.stragglers)
