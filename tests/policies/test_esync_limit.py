"""ESync with a limit on the local steps of a round."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyrhythm.core import Report, Sync, Trace
from polyrhythm.errors import SpecError
from polyrhythm.policies import ESync, parse_policy
from polyrhythm.sim import Device, Scenario, TimingWorkload, simulate

DEVICES = [Device(count=2, compute_s=0.1), Device(compute_s=2.0)]


def rounds(spec: str, folder: Path) -> Iterator[dict[int, int]]:
    """Local steps of each worker in each whole round on a cluster with one slow worker."""
    path = folder / "trace.jsonl"
    simulate(Scenario(devices=DEVICES, workload=TimingWorkload(samples=6400)), parse_policy(spec), trace=path)
    steps: Counter[int] = Counter()
    for entry in Trace.load(path).entries:
        if isinstance(entry.event, Report):
            steps[entry.event.worker] += 1
        if any(isinstance(decision, Sync) for decision in entry.decisions):
            yield dict(sorted(steps.items()))
            steps.clear()


def test_nobody_makes_more_steps(tmp_path: Path) -> None:
    limited = [max(steps.values()) for steps in rounds("esync:most=5", tmp_path)]
    assert max(limited) == 5
    assert max(max(steps.values()) for steps in rounds("esync", tmp_path)) > 15


def test_a_limit_that_nobody_reaches_changes_nothing(tmp_path: Path) -> None:
    assert list(rounds("esync:most=1000", tmp_path)) == list(rounds("esync", tmp_path))


def test_at_most_one_is_local_sgd_with_one_step(tmp_path: Path) -> None:
    assert all(set(steps.values()) == {1} for steps in rounds("esync:most=1", tmp_path))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(SpecError, match="most must be a whole number of at least 1 but got 0"):
        ESync(most=0)
    with pytest.raises(SpecError, match="most=5 needs workers that wait"):
        ESync(blocking=False, most=5)
