"""Trials in the simulator, with and without shared beginnings, in this process and in others."""

import sys
from functools import partial
from pathlib import Path

import pytest

from polyrhythm.errors import PolyrhythmError
from polyrhythm.search.loop import search
from polyrhythm.search.plan import Knob, SearchPlan, SearchTrial, TrialOutcome
from polyrhythm.search.runners import Joblib, Processes, SerialRunner, on_ray
from polyrhythm.search.simulated import SimulatedTrials
from polyrhythm.search.store import TrialStore
from polyrhythm.sim import Compute, Device, Network, Scenario
from polyrhythm.training.config import TrainingConfig

SCENARIO = Scenario(
    devices=[Device(count=4, compute_s=0.1, bandwidth_gbps=1.0)],
    compute=Compute(distribution="normal", deviation=0.03),
    network=Network(message_bytes=2e6, server_gbps=1.0),
    training=TrainingConfig(task="digits", epochs=1, batch_size=16, learning_rate=0.05, momentum=0.9),
)
PLAN = SearchPlan(settings=2, runs=2, error_rate=0.5, early=0.0, beta=0.02)


def test_shared_beginnings_change_the_cost_and_nothing_else(tmp_path: Path) -> None:
    plain = search(
        PLAN, SerialRunner(SimulatedTrials(SCENARIO, Knob(), reuse=False)), TrialStore(tmp_path / "a.db"), "x"
    )
    shared = search(PLAN, SerialRunner(SimulatedTrials(SCENARIO, Knob())), TrialStore(tmp_path / "b.db"), "x")
    assert [(o.trial, o.accuracy, o.time_s) for o in shared.state.outcomes] == [
        (o.trial, o.accuracy, o.time_s) for o in plain.state.outcomes
    ]
    assert plain.cost.share == pytest.approx(1.0)
    assert shared.cost.share < 0.75


def test_the_costs_of_trials_are_the_time_that_was_simulated() -> None:
    trials = SimulatedTrials(SCENARIO, Knob())
    later = trials(SearchTrial("switch:bsp@0.5,asp", 0))
    # Without a baseline run the beginning is made once, for whoever comes first.
    assert later.time_s <= later.spent_s < 1.1 * later.time_s
    earlier = trials(SearchTrial("switch:bsp@0.25,asp", 0))
    assert earlier.spent_s < 0.8 * earlier.time_s
    baseline = trials(SearchTrial("switch:bsp@1,asp", 0))
    assert baseline.spent_s < 0.6 * baseline.time_s
    other = trials(SearchTrial("switch:bsp@0.5,asp", 1))
    assert other.spent_s >= other.time_s


def test_processes_keep_what_the_runs_of_a_seed_share() -> None:
    wanted = [SearchTrial("switch:bsp@1,asp", 0), SearchTrial("switch:bsp@0.5,asp", 0)]
    serial = list(SerialRunner(SimulatedTrials(SCENARIO, Knob())).run(wanted))
    with Processes(partial(SimulatedTrials, SCENARIO, Knob()), 2) as processes:
        assert [outcome for trial in wanted for outcome in processes.run([trial])] == serial


def test_joblib_runs_trials_anywhere() -> None:
    wanted = [SearchTrial("switch:bsp@1,asp", run) for run in range(4)]
    outcomes = list(Joblib(guess, 2, "threading").run(wanted))
    assert sorted(outcomes, key=lambda outcome: outcome.trial.run) == list(SerialRunner(guess).run(wanted))


def guess(trial: SearchTrial) -> TrialOutcome:
    """For threads, which torch's generator is not for."""
    return TrialOutcome(trial, 0.5 + trial.run / 10, 3.0, 4.0, diverged=False)


def test_without_ray_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(PolyrhythmError, match=r"--on ray needs Ray; install it with: pip install 'polyrhythm\[ray\]'"):
        on_ray(SimulatedTrials(SCENARIO, Knob(), reuse=False), 2)
