from math import log
from typing import Any

import pytest

from polyrhythm.core import Joined, Left, Proceed, Report, Sync
from polyrhythm.policies import KGroup
from polyrhythm.policies._lib.progress import LossWindow
from polyrhythm.policies.rlp.views import UNITS, VIEWS, ByAction, PaperView, PhaseView
from tests.policies.conftest import Drive


def test_the_actions_of_the_paper(drive: Drive) -> None:
    first, second = Report(1, 1, 1.0), Report(0, 1, 2.0)
    assert drive(ByAction("nobody"), 2, first, second) == [(Sync((1,)),), (Sync((0,)), Proceed((0, 1)))]
    assert drive(ByAction("self"), 2, first) == [(Sync((1,)), Proceed((1,)))]
    assert drive(ByAction("all"), 2, first) == [(Sync((1,)), Proceed((1,)))]
    assert drive(ByAction("nobody"), 2, first, Left(0, 2.0, 0))[-1] == (Proceed((1,)),)


def test_the_state_of_the_paper() -> None:
    view = PaperView()
    signals = view.init()
    for clock, loss in enumerate((2.0, 1.0), start=1):
        signals = view.hear(signals, Report(0, clock, float(clock), staleness=4, loss=loss))
    _, seen = view.observe(signals, None)
    assert seen is not None
    assert len(seen) == view.inputs == 40
    assert seen[:8] == pytest.approx((2 / UNITS[0], 2.0, -0.1 / UNITS[2], 0.4, 0.01, 2.0, 0.0, 0.4))
    assert set(seen[8:]) == {0.0}


def heard(view: PhaseView) -> object:
    signals = view.hear(view.init(), Joined((0, 1, 2, 3), 0.0))
    for worker, step_s in enumerate((1.0, 1.0, 1.2, 4.0)):
        signals = view.hear(signals, Report(worker, 1, step_s, step_s=step_s, staleness=2, loss=1.0))
    return signals


def test_a_phase_says_what_the_cluster_is_and_how_the_loss_falls() -> None:
    view, window = PhaseView(), LossWindow(4)
    for time_s, loss in enumerate((4.0, 3.0, 2.0, 1.0)):
        window = window.add(float(time_s), loss)
    signals, seen = view.observe(heard(view), window)  # type: ignore[arg-type]
    assert seen is not None
    assert len(seen) == view.inputs
    workers, share, slow, staleness, k, windows, relative, level, rate, change, *_ = seen
    assert (workers, share, staleness, k, windows) == (0.5, 0.75, 0.5, 0.25, 0.0)
    assert slow == pytest.approx((4 / 1.0 - 1) / 4)
    assert (relative, change) == (0.0, 0.0)
    assert level == pytest.approx(log(2.5))
    assert rate == 2.0  # 10 * 0.4 / s * 1.1 s, clipped
    assert (signals.past.windows, signals.past.first, signals.reports) == (1, 2.5, 0)


def test_the_choice_follows_the_healthy() -> None:
    view = PhaseView()
    policies = [view.choose(heard(view), action)[1] for action in range(4)]  # type: ignore[arg-type]
    assert policies == [KGroup(1), KGroup(2), KGroup(2), KGroup(3)]


def test_no_choice_is_due_inside_a_window() -> None:
    view = PhaseView()
    assert view.observe(view.init(), None)[1] is None
    assert set(VIEWS) == {"paper", "phase"}


def test_the_end_of_an_epoch_hides_nobody_who_is_slow() -> None:
    view: PhaseView = PhaseView()
    before: Any = heard(view)
    signals = before
    for worker in range(4):
        signals = view.hear(signals, Left(worker, 5.0, 1, "finished"))
    back = view.hear(signals, Joined((0, 1, 2, 3), 6.0, 1))
    assert view.cluster_part(back) == view.cluster_part(before)
    assert view.cluster_part(view.hear(signals, Joined((0, 1, 3), 6.0, 1)))[1] == 2 / 3
