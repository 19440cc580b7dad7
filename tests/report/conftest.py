"""Hand-made runs: three workers, the last one slow, under policies that are easy to follow by eye."""

import pytest

from polyrhythm.core import Cancel, Cluster, Entry, Header, Joined, Left, Proceed, Report, Sync, Trace


@pytest.fixture
def bsp_trace() -> Trace:
    """Two rounds: workers 0 and 1 take 1 s, worker 2 takes 3 s of which 1 s is transfer."""
    entries = [Entry(Joined((0, 1, 2), 0.0), (Proceed((0, 1, 2)),))]
    for start in (0.0, 3.0):
        clock = int(start / 3) + 1
        last = () if start else (Proceed((0, 1, 2)),)
        entries += [
            Entry(Report(0, clock, start + 1.0, 16, step_s=1.0), ()),
            Entry(Report(1, clock, start + 1.0, 16, step_s=1.0), ()),
            Entry(Report(2, clock, start + 3.0, 16, step_s=2.0, transfer_s=1.0), (Sync((0, 1, 2)), *last)),
        ]
    entries += [Entry(Left(worker, 6.0, 2, "finished"), ()) for worker in range(3)]
    return Trace(Header("bsp", Cluster(3)), tuple(entries))


@pytest.fixture
def cancelling_trace() -> Trace:
    """K-sync with K = 1 of 2: worker 1 is cancelled at 1 s, then leaves while it works at 1.5 s."""
    entries = [
        Entry(Joined((0, 1), 0.0), (Proceed((0, 1)),)),
        Entry(Report(0, 1, 1.0, step_s=1.0), (Sync((0,)), Cancel((1,)), Proceed((0, 1)))),
        Entry(Left(1, 1.5, 0), ()),
        Entry(Report(0, 2, 2.0, step_s=0.75, staleness=4), (Sync((0,)),)),
    ]
    return Trace(Header("k-sync:1", Cluster(2)), tuple(entries))
