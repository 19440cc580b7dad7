"""Processes of a search, and Ctrl-C, which a terminal sends to each of them."""

import multiprocessing
import signal
import threading
from collections.abc import Callable
from typing import Any

from polyrhythm.search.plan import SearchTrial, TrialOutcome
from polyrhythm.search.runners import Processes

TRIALS = [SearchTrial("asp", run) for run in range(2)]


def masks() -> Callable[[SearchTrial], Any]:
    return lambda trial: signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def one_that_never_ends() -> Callable[[SearchTrial], Any]:
    return hold


def hold(trial: SearchTrial) -> TrialOutcome:
    if trial.run:
        threading.Event().wait()
    return TrialOutcome(trial, 0.5, 3.0, 4.0, diverged=False)


def test_ctrl_c_is_for_the_process_that_searches() -> None:
    with Processes(masks, 2) as processes:
        held: list[Any] = list(processes.run(TRIALS))
    assert held == [True, True]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_trial_that_nobody_waits_for_ends_with_the_search() -> None:
    others = multiprocessing.active_children()
    with Processes(one_that_never_ends, 2) as processes:
        assert next(processes.run(TRIALS)).trial == TRIALS[0]
        children = [child for child in multiprocessing.active_children() if child not in others]
        assert len(children) == 2
    assert not any(child.is_alive() for child in children)
