"""Bytes by link add up to those of the whole job."""

import pytest

from polyrhythm.core import Decision, Joined, Left, Proceed, Report, Sync
from polyrhythm.telemetry import Gauge, LinkBytes

MODEL = 1000


@pytest.mark.parametrize(
    ("synchronous", "push_bytes", "star"),
    [(False, MODEL, False), (False, 250.0, False), (True, MODEL, False), (True, 250.0, False), (True, MODEL, True)],
)
def test_they_add_up_to_those_of_the_gauge(synchronous: bool, push_bytes: float, star: bool) -> None:
    gauge, links = Gauge(), LinkBytes()
    for counter in (gauge, links):
        counter.begin_phase(synchronous, MODEL, push_bytes, star)
    # Where workers exchange among themselves all contribute; servers take one after the other.
    together: tuple[Decision, ...] = (Sync((0, 1, 2), what="parameters"), Proceed((0, 1, 2)))
    for counter in (gauge, links):
        counter.record(Joined((0, 1, 2), 0.0), (Proceed((0, 1, 2)),))
        for worker in (0, 1, 2):
            alone: tuple[Decision, ...] = (Sync((worker,)), Proceed((worker,)))
            decided = (together if worker == 2 else ()) if synchronous else alone
            counter.record(Report(worker, 1, 1.0, samples=8, step_s=0.5), decided)
    assert sum(links.sent.values()) == pytest.approx(gauge.meter.bytes_pushed * (1 if not synchronous or star else 2))
    assert sum(links.received.values()) == pytest.approx(
        gauge.meter.bytes_pulled * (1 if not synchronous or star else 2)
    )


def test_who_has_left_sends_nothing() -> None:
    links = LinkBytes()
    links.begin_phase(True, MODEL, MODEL, False)
    links.record(Joined((0, 1), 0.0), ())
    links.record(Left(1, 1.0, 0, "died"), (Sync((0,), what="parameters"),))
    assert links.sent[1] == 0.0
