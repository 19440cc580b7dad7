"""Epochs that end for all workers at once, as on real ones."""

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.core import Decisions, Event, Joined, Left, Report, Sync
from polyrhythm.core.epoch_plan import EpochPlan
from polyrhythm.core.workload import SampleRange
from polyrhythm.errors import ScenarioError
from polyrhythm.policies import parse_policy
from polyrhythm.sim import Device, Network, Scenario, TimingWorkload, simulate
from polyrhythm.sim.cluster.faults import Faults, Leave
from polyrhythm.sim.epochs import MeetingWorkload
from polyrhythm.training.config import TrainingConfig
from tests.sim.clusters import Recorder

ALIKE = Scenario(
    devices=[Device(compute_s=1.0), Device(compute_s=2.0)],
    workload=TimingWorkload(batch_size=1, samples=12, dataset_samples=6),
    epoch_end_s=0.5,
)


def events(spec: str) -> list[Event]:
    log: list[tuple[Event, Decisions]] = []
    simulate(ALIKE, Recorder(parse_policy(spec), log))
    return [event for event, _ in log]


def test_all_begin_an_epoch_together_behind_the_last_step_of_the_one_before() -> None:
    told = events("asp")
    joined = [event for event in told if isinstance(event, Joined)]
    assert [event.workers for event in joined] == [(0, 1), (0, 1)]
    second = told.index(joined[1])
    assert [event.reason for event in told[:second] if isinstance(event, Left)] == ["finished"] * 2
    last_s = max(event.time_s for event in told[:second] if isinstance(event, Report))
    assert (last_s, joined[1].time_s) == (4.0, 4.5)


def test_in_lockstep_all_make_as_many_steps_and_share_the_last_one() -> None:
    reports = [event for event in events("local:2") if isinstance(event, Report)]
    assert [[report.samples for report in reports if report.worker == worker] for worker in (0, 1)] == [[1] * 6] * 2
    odd = Scenario(devices=ALIKE.devices, workload=TimingWorkload(batch_size=4, samples=13), epoch_end_s=0.0)
    assert simulate(odd, parse_policy("bsp")).duration_s == 2.0 + 2.0 * 2 / 4


def test_who_waits_at_the_end_of_an_epoch_is_idle() -> None:
    result = simulate(ALIKE, parse_policy("asp"))
    assert (result.duration_s, result.samples, result.steps_by_worker) == (8.5, 12, {0: 8, 1: 4})
    assert result.idle_fraction_by_worker == pytest.approx({0: 1 - 8 / 8.5, 1: 1 - 8 / 8.5})


def test_replicas_are_equal_at_the_end_of_an_epoch() -> None:
    training = TrainingConfig(train_samples=64, test_samples=50, batch_size=8, epochs=3, eval_every_samples=64)
    apart = Scenario(devices=[Device(count=2)], training=training)
    meeting = Scenario(devices=[Device(count=2)], training=training, epoch_end_s=0.0)
    assert simulate(apart, parse_policy("local:4")).curve == simulate(meeting, parse_policy("local:4")).curve
    differ = [simulate(scenario, parse_policy("local:100")).curve[-1].loss for scenario in (apart, meeting)]
    assert differ[0] != differ[1]


@pytest.mark.parametrize(
    ("network", "spec", "meeting_s"),
    [
        (Network(averaging="ring", averaging_s=0.25, message_bytes=100.0), "local:2", 100.0 / 50.0 + 0.25),
        (Network(averaging="ring", averaging_s=0.25, message_bytes=100.0), "local:3", 0.0),
        (Network(latency_s=0.125, message_bytes=100.0), "local:2", 2 * 100.0 / 50.0 + 2 * 0.125),
    ],
    ids=["ring", "equal already", "server"],
)
def test_replicas_that_differ_are_averaged_before_the_next_epoch(network: Network, spec: str, meeting_s: float) -> None:
    """Three steps an epoch; with a period of two the last one is made apart."""
    devices = [Device(compute_s=1.0, bandwidth_gbps=50.0 * 8e-9) for _ in range(2)]
    log: list[tuple[Event, Decisions]] = []
    simulate(msgspec.structs.replace(ALIKE, devices=devices, network=network), Recorder(parse_policy(spec), log))
    told = [event for event, _ in log]
    second = [number for number, event in enumerate(told) if isinstance(event, Joined)][1]
    assert told[second].time_s - told[second - 1].time_s == pytest.approx(0.5 + meeting_s)


@pytest.mark.parametrize("averaging", ["ring", "server"])
@pytest.mark.parametrize(("spec", "averages"), [("local:2", 3), ("local:3", 2)])
def test_the_average_that_ends_an_epoch_is_sent_like_any_other(averaging: str, spec: str, averages: int) -> None:
    """Six steps each: with a period of two the first epoch ends apart, and its average takes the place of another."""
    network = {"averaging": averaging, "message_bytes": 100.0}
    meeting = msgspec.structs.replace(ALIKE, devices=[Device(count=2)], network=msgspec.convert(network, Network))
    without = msgspec.structs.replace(meeting, epoch_end_s=None)
    sent = [simulate(scenario, parse_policy(spec)).bytes_total for scenario in (meeting, without)]
    one = 2 * 100.0 if averaging == "ring" else 2 * 2 * 100.0
    assert sent == [averages * one] * 2


def test_only_epochs_that_all_share_can_end_for_all() -> None:
    with pytest.raises(ScenarioError, match=r"training.partition is 'seldp'"):
        Scenario(devices=[Device()], epoch_end_s=0.0, training=TrainingConfig(partition="seldp"))


@given(samples=st.integers(1, 60), members=st.integers(1, 5), batch_size=st.integers(1, 7))
def test_an_epoch_in_lockstep_has_the_steps_of_real_workers(samples: int, members: int, batch_size: int) -> None:
    """Also if less than a sample for each is left: it makes mini-batches of the last step larger by one."""
    workload = MeetingWorkload(samples, samples, even=True)
    workload.join(range(members))
    taken = []
    while any(round_ := [workload.hand_out(batch_size, member) for member in range(members)]):
        taken.append([sample_range.samples if sample_range else 0 for sample_range in round_])
    if samples >= members:
        plan = EpochPlan((SampleRange(0, 0, samples),), members, batch_size)
        assert taken == [[plan.size(step, member) for member in range(members)] for step in range(plan.steps)]
    assert sum(map(sum, taken)) == samples


def rounds_of(spec: str, samples: int, epoch_end_s: float | None = 0.5, latency_s: float = 0.0) -> list[dict[int, int]]:
    """Local steps of each worker in each exchange of all three; epochs of 52 samples."""
    scenario = Scenario(
        devices=[Device(compute_s=compute_s) for compute_s in (1.0, 4.1, 0.5)],
        network=Network(latency_s=latency_s),
        workload=TimingWorkload(batch_size=1, samples=samples, dataset_samples=52 if epoch_end_s else samples),
        epoch_end_s=epoch_end_s,
    )
    log: list[tuple[Event, Decisions]] = []
    simulate(scenario, Recorder(parse_policy(spec), log))
    made, rounds = Counter[int](), []
    for event, decisions in log:
        if isinstance(event, Report):
            made[event.worker] += 1
        elif isinstance(event, Left):
            del made[event.worker]
        whole = [d for d in decisions if isinstance(d, Sync) and len(d.workers) == 3]
        rounds += [{worker: made.pop(worker) for worker in decision.workers} for decision in whole]
    return rounds


@pytest.mark.parametrize("latency_s", [0.0, 0.05])
@pytest.mark.parametrize("spec", ["esync", "esync:blocking=false"])
def test_esync_calibrates_once_and_not_in_every_epoch(spec: str, latency_s: float) -> None:
    epochs, one = rounds_of(spec, 156, latency_s=latency_s), rounds_of(spec, 156, None, latency_s)
    assert epochs[0] == one[0]
    assert all(each == one[1] for each in (*epochs[1:], *one[1:]))
    assert len(epochs) >= 9


@pytest.mark.parametrize(
    ("death_s", "back_after_s", "joined"),
    [
        (5.2, None, [(0, 1), (1,)]),  # at the end of its epoch
        (5.7, None, [(0, 1), (1,)]),  # between two epochs
        (5.2, 0.5, [(0, 1), (0, 1)]),
        (5.2, 0.1, [(0, 1), (0,), (0, 1)]),
    ],
)
def test_who_dies_at_the_end_of_an_epoch_is_not_there_in_the_next(
    death_s: float, back_after_s: float | None, joined: list[tuple[int, ...]]
) -> None:
    """As at the coordinator, which tells nobody of that death, and who comes between two epochs begins with all."""
    leave = Leave(worker=0, time_s=death_s, back_after_s=back_after_s)
    devices = [Device(compute_s=1.0), Device(compute_s=5.5)]
    scenario = msgspec.structs.replace(ALIKE, devices=devices, faults=Faults(leaves=[leave]))
    log: list[tuple[Event, Decisions]] = []
    assert simulate(scenario, Recorder(parse_policy("asp"), log)).samples == 12
    assert [event.workers for event, _ in log if isinstance(event, Joined)] == joined


def test_who_has_come_back_between_epochs_may_go_again_before_the_next() -> None:
    """It was taken off twice from those whose time counts."""
    leaves = [Leave(worker=1, time_s=4.1, back_after_s=0.1), Leave(worker=1, time_s=4.3)]
    result = simulate(msgspec.structs.replace(ALIKE, faults=Faults(leaves=leaves)), "asp")
    assert (result.samples, result.steps_by_worker) == (12, {0: 10, 1: 2})


def test_others_make_what_only_the_replica_had_of_one_that_dies_at_the_end() -> None:
    scenario = msgspec.structs.replace(ALIKE, faults=Faults(leaves=[Leave(worker=0, time_s=5.5)]))
    result = simulate(scenario, parse_policy("local:2"))
    assert (result.samples, result.steps_by_worker) == (12, {0: 3, 1: 3 + 1 + 6})
    assert (result.gradients_computed, result.gradients_applied, result.gradients_dropped) == (13, 12, 1)
