"""Checkpoints of jobs in memory: a snapshot says what is in the parameters, and a job that goes on makes the rest."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.core.policy_state import decode_state
from polyrhythm.errors import UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.checkpoint.manifest import JobSnapshot, Position
from polyrhythm.runtime.checkpoint.snapshots import other_data
from polyrhythm.runtime.wire.protocol import Ready, Term
from polyrhythm.runtime.wire.recovery.resumption import Resumption
from polyrhythm.runtime.wire.shard_protocol import NOT_APART, NOT_IN_SHARES
from polyrhythm.runtime.worker.presence.epoch_place import EpochPlace
from tests.runtime.coordinator.test_coordinator import EPOCHS, POLICIES, processed_once
from tests.runtime.fake_job import FakeJob, at_ticks

Places = Counter[tuple[int, int]]


def done(position: Position) -> Places:
    """What is in the parameters, as a position says."""
    work = position.workload
    left = {(r.epoch, place) for r in work.returned for place in range(r.start, r.stop)}
    handed = (divmod(number, work.dataset_samples) for number in range(work.handed_out))
    return Counter(place for place in handed if place not in left)


def check_snapshots(job: FakeJob) -> None:
    for snapshot, applied in job.snapshots:
        position, past = snapshot.position, done(snapshot.position)
        assert applied <= past
        assert position.samples == applied.total()
        assert position.skipped_samples == past.total() - applied.total()


def finish(snapshot: JobSnapshot, applied: Places, workers: int, samples: int, batch: int, seed: int) -> None:
    """A job that goes on from a snapshot: with what was in the parameters then, everything is there once.

    But for less than a sample for each worker that is left of the epoch, which is counted as skipped.
    """
    job = FakeJob(snapshot.policy, workers, samples, batch, EPOCHS, seed, resumed=snapshot)
    job.applied = Counter(applied)
    job.run({})
    processed_once(job)
    assert set(job.applied) <= {(epoch, place) for epoch in range(EPOCHS) for place in range(samples)}
    assert EPOCHS * samples - len(job.applied) == job.coordinator.job.skipped_samples < workers


@pytest.mark.parametrize("policy", POLICIES)
@given(seed=st.integers(0, 2**32), workers=st.integers(1, 4), later=st.integers(1, 4), data=st.data())
@settings(max_examples=4, derandomize=True, deadline=None)
def test_a_job_goes_on_from_any_of_its_snapshots(
    policy: str, seed: int, workers: int, later: int, data: st.DataObject
) -> None:
    saves = data.draw(st.sets(st.integers(1, 150), max_size=3))
    kills = data.draw(st.dictionaries(st.integers(1, 150), st.integers(1, 3), max_size=int(workers > 1)))
    job = FakeJob(policy, workers, 48, 3, EPOCHS, seed, ahead=seed % 3)
    events = dict.fromkeys(saves, "save 0")
    job.run(events | {tick: f"kill {rank % workers or 1}" for tick, rank in kills.items()})
    processed_once(job)
    check_snapshots(job)
    for snapshot, applied in job.snapshots:
        finish(snapshot, applied, later, 48, 3, seed)


@given(
    seed=st.integers(0, 2**32),
    first=st.sampled_from(POLICIES),
    saves=st.sets(st.integers(1, 200), min_size=1, max_size=4),
    switches=st.dictionaries(st.integers(1, 200), st.sampled_from(POLICIES), max_size=2),
)
@settings(max_examples=30, derandomize=True, deadline=None)
def test_snapshots_and_switches_do_not_disturb_each_other(
    seed: int, first: str, saves: set[int], switches: dict[int, str]
) -> None:
    job = FakeJob(first, 3, 60, 3, EPOCHS, seed)
    job.run(dict.fromkeys(saves, "save 0") | at_ticks("switch", switches))
    processed_once(job)
    check_snapshots(job)


@pytest.mark.parametrize("policy", ["selsync:0.05", "dssp:1,3", "balanced", "esync", "diloco:3"])
def test_a_policy_goes_on_from_its_state(policy: str) -> None:
    job = FakeJob(policy, 3, 240, 3, 1, seed=1)
    job.run({40: "save 0"})
    (snapshot, _), *_ = job.snapshots
    assert type(decode_state(snapshot.state)) is type(parse_policy(policy).init(job.traces[0][1]))
    assert job.states[-1] == snapshot.state


@pytest.mark.parametrize(("own", "refused"), [(True, False), (False, True)])
def test_data_of_the_workers_own_may_be_shorter_than_those_of_the_checkpoint(own: bool, refused: bool) -> None:
    """The checkpoint has the length of the longest; the others were refused when the job was to go on."""
    kept = Ready(0, 80, 4, own=own)
    said = other_data(Ready(0, 48, 4, own=own), kept)
    assert ("its data set has 48 samples, that of the checkpoint 80" in said) == refused
    assert bool(said) == refused


def test_what_a_worker_cannot_do_is_not_of_its_data() -> None:
    """A checkpoint of an earlier version may say nothing of it, or in other words."""
    kept: dict[str, Term] = {"seed": 1, NOT_IN_SHARES: "why"}
    own: dict[str, Term] = {"seed": 1, NOT_IN_SHARES: "why not", NOT_APART: "why not"}
    assert other_data(Ready(0, 48, 4, terms=own), Ready(0, 48, 4, terms=kept)) == ""
    place = EpochPlace(Resumption(policy="bsp"), 48, kept)
    assert place.checked(48, own) == Resumption(policy="bsp")
    with pytest.raises(UsageError, match="the loader has seed=2, that of the checkpoint seed=1"):
        place.checked(48, own | {"seed": 2})
