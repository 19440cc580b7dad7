"""What stands out in a job, in one sentence."""

import math

import pytest

from polyrhythm.live.model import view_of
from polyrhythm.live.verdict import LEAST_STEPS, LiveVerdict, Pace, verdict_of
from tests.live.statuses import arrival, status, worker


def pace(rank: int, compute_s: float = 0.02, transfer_s: float = 0.0, wait_s: float = 0.0, **more: object) -> Pace:
    usual = {"steps": 90, "kind": "", "late": None, "heard_s": 0.1}
    return Pace(rank=rank, compute_s=compute_s, transfer_s=transfer_s, wait_s=wait_s, **{**usual, **more})  # type: ignore[arg-type]


def told(*paces: Pace, loss: float | None = 0.5, dropped: int = 0, applied: int = 100) -> LiveVerdict:
    found = verdict_of(paces, loss, dropped, applied)
    assert found is not None
    return found


def test_too_little_is_no_verdict() -> None:
    assert verdict_of([], 0.5, 0, 0) is None
    assert verdict_of([pace(0), pace(1, steps=LEAST_STEPS - 1)], 0.5, 0, 100) is None


def test_the_slowest_is_named_with_what_it_is_slow_in() -> None:
    others = [pace(0, wait_s=0.04), pace(2, wait_s=0.04)]
    slow = told(*others, pace(1, 0.06, kind="persistent", late=3.0))
    assert slow.verdict == "Rank 1 is slow in computing: 3x the median."
    assert "60 ms a step against 20 ms, persistent; the others wait 67 % of their time" in slow.why
    assert "drain it" in slow.next_step
    link = told(*others, pace(1, 0.02, 0.04, kind="transient", late=3.0), pace(3, 0.03, late=1.5))
    assert link.verdict == "Rank 1 is slow in transfers: 3x the median, and 1 more."
    assert "--compress" in link.next_step
    assert told(pace(0), pace(1, 0.019, late=1.4), pace(2)).verdict == "Nothing stands out."  # it has caught up
    assert "hardly anybody waits" in told(pace(0), pace(1, 0.06, late=3.0)).next_step


@pytest.mark.parametrize(
    ("paces", "more", "verdict"),
    [
        ([pace(0)], {"loss": math.nan}, "The loss is nan."),
        ([pace(0), pace(1, heard_s=7.0)], {}, "Rank 1 has been silent for 7 s."),
        ([pace(0)], {"dropped": 50, "applied": 50}, "50 % of the gradients come to nothing."),
        ([pace(0, 0.01, 0.02)], {}, "Transfers take long."),
        ([pace(0, 0.01, 0.0, 0.02)], {}, "Nobody is slow, and all wait."),
        ([pace(0)], {}, "Nothing stands out."),
    ],
)
def test_what_else_can_stand_out(paces: list[Pace], more: dict[str, float], verdict: str) -> None:
    found = told(*paces, **more)  # type: ignore[arg-type]
    assert found.verdict == verdict
    assert found.why
    assert found.next_step
    assert found.fine == (verdict == "Nothing stands out.")


def test_a_view_has_it() -> None:
    arrivals = {0: arrival(90, 0.02), 1: arrival(90, 0.06, relative=3.0, late=True, kind="persistent")}
    view = view_of(status(arrivals=arrivals, workers=(worker(0), worker(1))))
    assert view.advice is not None
    assert view.advice.verdict.startswith("Rank 1 is slow")
