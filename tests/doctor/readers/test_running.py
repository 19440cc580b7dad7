from collections.abc import Mapping

import msgspec
import pytest

from polyrhythm.doctor.readers.running import evidence_of_looks
from polyrhythm.errors import TraceError
from polyrhythm.runtime.wire.control_protocol import Status, WorkerStatus
from polyrhythm.telemetry.stragglers import Lateness

COMPUTE_S = {0: 0.02, 1: 0.02, 2: 0.05}
EXCHANGE_S = 0.005


def look(number: int, steps: Mapping[int, int], policy: str = "bsp", phase: int = 1) -> Status:
    """A job whose third worker is slow, after so many steps of each."""
    slowest_s = max(COMPUTE_S.values())
    arrivals = {
        rank: Lateness(count, COMPUTE_S[rank], 0.0, slowest_s - COMPUTE_S[rank] + EXCHANGE_S)
        for rank, count in steps.items()
    }
    workers = tuple(WorkerStatus(rank, "far" if rank == 2 else "", 8 * count) for rank, count in steps.items())
    return Status(
        policy, phase, 0, tuple(steps), 0, 0, 0, 0, {}, arrivals=arrivals, time_s=float(number), workers=workers,
        dataset_samples=960,
    )  # fmt: skip


def looks(count: int = 30) -> list[Status]:
    return [look(number, dict.fromkeys(COMPUTE_S, 1 + 4 * number)) for number in range(count)]


def test_steps_between_two_looks_are_one_column() -> None:
    evidence = evidence_of_looks("mine", looks(5))
    assert evidence.own_s == pytest.approx(evidence.own_s[:, :1].repeat(4, axis=1))
    assert evidence.own_s[:, 0] == pytest.approx(list(COMPUTE_S.values()))
    assert evidence.communication_s == pytest.approx(EXCHANGE_S)
    assert evidence.waiting_s[:, 0] == pytest.approx([0.03, 0.03, 0.0])
    assert (evidence.batch_size, evidence.epoch_samples) == (8, 960)
    assert evidence.hosts == ("the coordinator's host", "the coordinator's host", "far")
    assert evidence.synchronous


def test_looks_between_which_somebody_made_no_step_are_one() -> None:
    seen = [look(0, {0: 1, 1: 1, 2: 1}), look(1, {0: 3, 1: 3, 2: 1}), look(2, {0: 4, 1: 4, 2: 3})]
    assert evidence_of_looks("mine", seen).steps == 1


def test_only_what_came_after_the_last_change_counts() -> None:
    earlier = [look(number, dict.fromkeys(COMPUTE_S, 1 + number), "asp", 1) for number in range(9)]
    later = [look(9 + number, dict.fromkeys(COMPUTE_S, 10 + number), "bsp", 2) for number in range(3)]
    assert evidence_of_looks("mine", earlier + later).steps == 2


def test_an_asynchronous_job_is_read_as_one() -> None:
    seen = [look(number, dict.fromkeys(COMPUTE_S, 1 + number), "asp") for number in range(3)]
    evidence = evidence_of_looks("mine", seen)
    assert not evidence.synchronous
    assert "what is lost is what bsp would lose" in evidence.notes[-1]


def test_unequal_mini_batches_are_told_as_equal_ones() -> None:
    shares = {0: 10, 1: 10, 2: 4}
    seen = [
        msgspec.structs.replace(
            look(number, dict.fromkeys(COMPUTE_S, 1 + 4 * number), "balanced"),
            workers=tuple(WorkerStatus(rank, "", share * (1 + 4 * number)) for rank, share in shares.items()),
        )
        for number in range(3)
    ]
    evidence = evidence_of_looks("mine", seen)
    assert (evidence.batch_size, evidence.equalised) == (8, True)
    assert evidence.own_s[:, 0] == pytest.approx([0.016, 0.016, 0.1])
    assert evidence.waiting_s[:, 0] == pytest.approx([0.084, 0.084, 0.0])
    assert evidence.communication_s == pytest.approx(EXCHANGE_S)
    assert evidence.notes[-1].startswith("under balanced mini-batches are unequal")


@pytest.mark.parametrize(
    ("seen", "message"),
    [
        ([look(0, {0: 5})], "job mine has 1 workers, and it takes 2 to compare"),
        (looks(1), "not all of its workers made steps meanwhile; look for longer, with --seconds"),
    ],
)
def test_what_is_no_evidence_is_one_line(seen: list[Status], message: str) -> None:
    with pytest.raises(TraceError, match=message):
        evidence_of_looks("mine", seen)
