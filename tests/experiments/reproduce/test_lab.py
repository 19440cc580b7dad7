"""Trials are run once, over seeds, and a reproduction that was killed goes on."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from polyrhythm.errors import PolyrhythmError
from polyrhythm.policies import parse_policy
from polyrhythm.sim import simulate
from polyrhythm.telemetry.result import RunResult
from polyrhythm_experiments.reproduce import Lab, Trial
from polyrhythm_experiments.reproduce.store import ResultStore
from tests.experiments.reproduce.conftest import SCENARIO, trials

OpenLab = Callable[..., Lab]


def figures(runs: list[RunResult]) -> list[tuple[int, float]]:
    return [(run.seed, run.duration_s) for run in runs]


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_lab_gives_what_the_simulator_gives(lab: OpenLab, jobs: int) -> None:
    runs = lab(seeds=(0, 3), jobs=jobs).run(trials())
    assert {policy: figures(group) for policy, group in runs.items()} == {
        policy: [(seed, simulate(SCENARIO, parse_policy(policy), seed=seed).duration_s) for seed in (0, 3)]
        for policy in ("bsp", "asp")
    }


def test_what_is_done_is_not_done_again(lab: OpenLab, monkeypatch: pytest.MonkeyPatch) -> None:
    first = lab(seeds=(0, 1)).run(trials())
    monkeypatch.setattr("polyrhythm_experiments.reproduce.lab.run_one", lambda *_: pytest.fail("ran again"))
    again = lab(seeds=(0, 1)).run(trials())
    assert {key: figures(runs) for key, runs in again.items()} == {key: figures(runs) for key, runs in first.items()}


def test_only_what_is_missing_is_run_and_told(lab: OpenLab) -> None:
    told: list[tuple[int, int]] = []
    lab().run({"bsp": Trial(SCENARIO, "bsp")})
    lab(tell=lambda finished, planned: told.append((finished, planned))).run(trials())
    assert told == [(1, 2), (2, 2)]


def test_a_run_is_remembered_as_soon_as_it_is_done(lab: OpenLab) -> None:
    def stop(finished: int, planned: int) -> None:
        if finished == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        lab(tell=stop).run(trials())
    told: list[tuple[int, int]] = []
    lab(tell=lambda *counts: told.append(counts)).run(trials())
    assert told[0] == (1, 2)


def test_another_scenario_policy_target_or_seed_is_another_run(lab: OpenLab) -> None:
    store = lab().store
    other = msgspec.structs.replace(SCENARIO, name="other")
    paths = {
        store.path("x", trial.made_from(seed))
        for trial in (Trial(SCENARIO, "bsp"), Trial(other, "bsp"), Trial(SCENARIO, "asp"), Trial(SCENARIO, "bsp", 0.5))
        for seed in (0, 1)
    }
    assert len(paths) == 8


def test_a_trial_that_cannot_run_is_named(lab: OpenLab) -> None:
    with pytest.raises(PolyrhythmError, match="spp on custom, seed 0: unknown policy"):
        lab().run({"k": Trial(SCENARIO, "spp")})


def test_a_file_that_was_torn_is_made_again(tmp_path: Path) -> None:
    store = ResultStore(tmp_path)
    store.keep("x", {}, 1)
    store.path("x", {}).write_bytes(b'{"result":')
    assert store.remember("x", {}, lambda: 2, int) == 2
    store.path("x", {}).write_bytes(b'{"result": "text"}')
    assert store.remember("x", {}, lambda: 3, int) == 3


def test_equal_trials_are_run_once(lab: OpenLab) -> None:
    told: list[tuple[int, int]] = []
    runs = lab(tell=lambda *counts: told.append(counts)).run({name: Trial(SCENARIO, "bsp") for name in "ab"})
    assert told == [(0, 1), (1, 1)]
    assert runs["a"] == runs["b"]
