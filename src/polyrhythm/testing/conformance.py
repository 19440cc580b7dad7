"""The conformance kit as tests: random clusters and fault scripts against every law of `polyrhythm.testing.laws`."""

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.core import LeftReason, Policy
from polyrhythm.testing.laws import check
from polyrhythm.testing.script import ClusterScript, Fault, LateJoin

MOST_WORKERS = 6

REASONS: st.SearchStrategy[LeftReason] = st.sampled_from(["died", "hung", "removed"])


def durations(workers: int) -> st.SearchStrategy[tuple[tuple[float, ...], ...]]:
    """Step times: all equal, a speed for each worker, close to each other, or now and then very long."""
    steady = st.sampled_from([1.0, 1.5, 3.0, 7.0]).map(lambda duration_s: (duration_s,))
    close = st.lists(st.sampled_from([1.0, 1.1, 0.9, 1.3]), min_size=1, max_size=5).map(tuple)
    heavy_tailed = st.lists(st.sampled_from([1.0, 1.0, 1.0, 2.0, 7.0, 60.0]), min_size=1, max_size=8).map(tuple)
    cycles = [st.lists(cycle, min_size=workers, max_size=workers) for cycle in (steady, close, heavy_tailed)]
    return st.one_of(st.just(((1.0,),)), *[cycle.map(tuple) for cycle in cycles])


def faults(workers: int, most: int) -> st.SearchStrategy[tuple[Fault, ...]]:
    """Workers that leave, running or waiting; newcomers too."""
    fault = st.builds(
        Fault,
        worker=st.integers(0, workers - 1) | st.integers(0, workers),
        step=st.integers(0, 3),
        at=st.sampled_from([0.5, 0.9, 0.0, 1.0, 1.5, 3.0]),
        reason=REASONS,
    )
    return st.integers(0, most).flatmap(lambda count: st.lists(fault, min_size=count, max_size=count).map(tuple))


def arrivals(most: int) -> st.SearchStrategy[tuple[LateJoin, ...]]:
    """Newcomers, also after everyone else is gone."""
    arrival = st.builds(LateJoin, time_s=st.sampled_from([0.0, 0.5, 1.0, 3.3, 10.0, 100.0]), workers=st.integers(1, 3))
    return st.integers(0, most).flatmap(lambda count: st.lists(arrival, min_size=count, max_size=count).map(tuple))


@st.composite
def scripts(
    draw: st.DrawFn,
    workers: st.SearchStrategy[int] | None = None,
    most_faults: int = 4,
    most_arrivals: int = 2,
    meets: st.SearchStrategy[bool] | None = None,
) -> ClusterScript:
    """Random clusters: equal, uneven and heavy-tailed durations, ends of epochs, deaths and newcomers.

    Args:
        draw: supplied by hypothesis.
        workers: how many start; 1 to `MOST_WORKERS` by default.
        most_faults: how many may leave; 0 for a cluster that nobody leaves before the end.
        most_arrivals: how often others may join.
        meets: whether all workers end an epoch before any begins the next; never by default.
    """
    count = draw(st.integers(1, MOST_WORKERS) if workers is None else workers)
    return ClusterScript(
        workers=count,
        durations=draw(durations(count)),
        total_samples=draw(st.integers(20, 80) | st.integers(1, 20)),
        dataset_samples=draw(st.integers(1, 40)),
        batch_size=draw(st.integers(1, 3)),
        faults=draw(faults(count, most_faults)),
        arrivals=draw(arrivals(most_arrivals)),
        alarm_delay_s=draw(st.sampled_from([0.0, 0.7])),
        latency_s=draw(st.sampled_from([0.0, 0.4, 2.5])),
        meets=meets is not None and draw(meets),
    )


def single_deaths() -> Iterator[ClusterScript]:
    """Each death that a small uneven cluster can meet; chance seldom hits the slowest while the others wait for it."""
    for worker, step, at in product(range(3), range(4), (0.5, 1.0, 1.2)):
        yield ClusterScript(3, ((1.0,), (2.0,), (5.0,)), 24, 24, faults=(Fault(worker, step, at),))


def returns() -> Iterator[ClusterScript]:
    """Epochs after which all come back, and one that has died at the end of its own and comes back alone, or not."""
    for fault, arrivals in product((Fault(0, 2, 2.5), Fault(1, 1, 2.0), Fault(2, 0, 1.0)), ((), (LateJoin(7.0),))):
        yield ClusterScript(3, ((1.0,), (2.0,), (9.0,)), 24, 6, faults=(fault,), arrivals=arrivals, meets=True)


def conformance(policy: Policy[Any], examples: int = 100) -> Callable[[], None]:
    """A test that plays `policy` on many small clusters and checks every law of `polyrhythm.testing.check`.

    It takes two lines of a test file::

        from polyrhythm.testing import conformance
        test_mine = conformance(Mine(k=3))

    First come `single_deaths`, then random `scripts`, the same in every run, and then `returns`. A failure shows the
    smallest script that was found, and the last events.

    Args:
        policy: the policy, with parameters.
        examples: number of random clusters.
    """

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None, report_multiple_bugs=False)
    @given(script=scripts(meets=st.booleans()))
    def on_random_clusters(script: ClusterScript) -> None:
        check(policy, script)

    def test() -> None:
        for script in single_deaths():
            check(policy, script)
        on_random_clusters()
        for script in returns():
            check(policy, script)

    return test
