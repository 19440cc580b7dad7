"""The conformance kit as tests: random clusters and fault scripts against every law of `polyrhythm.testing.laws`."""

from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.core import LeftReason, Policy
from polyrhythm.testing.laws import check
from polyrhythm.testing.script import Arrival, Fault, Script

MOST_WORKERS = 6

equal = st.just(((1.0,),))
close = st.lists(st.sampled_from([1.0, 1.1, 0.9, 1.3]), min_size=1, max_size=5)
heavy_tailed = st.lists(st.sampled_from([1.0, 1.0, 1.0, 2.0, 7.0, 60.0]), min_size=1, max_size=8)
mixed = st.lists(st.one_of(close, heavy_tailed).map(tuple), min_size=1, max_size=MOST_WORKERS).map(tuple)
reasons: st.SearchStrategy[LeftReason] = st.sampled_from(["died", "hung", "removed"])


def faults(most: int) -> st.SearchStrategy[tuple[Fault, ...]]:
    """Workers that leave, running or waiting, among those that may ever be there."""
    fault = st.builds(
        Fault,
        worker=st.integers(0, MOST_WORKERS),
        step=st.integers(0, 5),
        at=st.sampled_from([0.0, 0.5, 1.0, 1.5, 3.0]),
        reason=reasons,
    )
    return st.lists(fault, max_size=most).map(tuple)


def arrivals(most: int) -> st.SearchStrategy[tuple[Arrival, ...]]:
    """Newcomers, also after everyone else is gone."""
    arrival = st.builds(Arrival, time_s=st.sampled_from([0.0, 0.5, 1.0, 3.3, 10.0, 100.0]), workers=st.integers(1, 3))
    return st.lists(arrival, max_size=most).map(tuple)


def scripts(
    workers: st.SearchStrategy[int] | None = None, most_faults: int = 4, most_arrivals: int = 2
) -> st.SearchStrategy[Script]:
    """Random clusters: equal, close and heavy-tailed durations, ends of epochs, deaths and newcomers.

    Args:
        workers: how many start; 1 to `MOST_WORKERS` by default.
        most_faults: how many may leave; 0 for a cluster that nobody leaves before the end.
        most_arrivals: how often others may join.
    """
    return st.builds(
        Script,
        workers=st.integers(1, MOST_WORKERS) if workers is None else workers,
        durations=st.one_of(equal, mixed),
        total_samples=st.integers(1, 60),
        dataset_samples=st.integers(1, 40),
        batch_size=st.integers(1, 3),
        faults=faults(most_faults),
        arrivals=arrivals(most_arrivals),
        alarm_delay_s=st.sampled_from([0.0, 0.7]),
    )


def conformance(policy: Policy[Any], examples: int = 150) -> Callable[[], None]:
    """A test that plays `policy` on random clusters and checks every law of `polyrhythm.testing.check`.

    It takes two lines of a test file::

        from polyrhythm.testing import conformance
        test_mine = conformance(Mine(k=3))

    The clusters are the same in every run. A failure shows the smallest script that was found, and the last events.

    Args:
        policy: the rule, with parameters.
        examples: number of clusters.
    """

    @settings(max_examples=examples, deadline=None, derandomize=True, database=None, report_multiple_bugs=False)
    @given(script=scripts())
    def test(script: Script) -> None:
        check(policy, script)

    return test
