"""Processes that joblib has started for a call end with the process that calls, however that ends.

They wait for more, and nothing tells them that nobody is left who could give it to them.

Calls nest: within such a process joblib runs further ones in threads, which are not tied, or, if a backend is named, in
processes of its own, which end with it. A call that is made in one process must be started by that same one.
"""

import os
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from multiprocessing import current_process
from typing import Any, Final, TypeVar

import joblib

CallResult = TypeVar("CallResult")

LOOK_S: Final = 0.5

OF_JOBLIB: Final = "LokyProcess"
"""How the names of such processes begin; who computes on a cluster is not ours to end."""


def delayed(function: Callable[..., CallResult]) -> Callable[..., Any]:
    """As `joblib.delayed`, of a function whose processes end with this one.

    >>> joblib.Parallel(n_jobs=1)([delayed(max)(3, 4)])
    [4]
    """
    tied: Callable[..., Any] = joblib.delayed(partial(call, os.getpid(), function))
    return tied


def call(caller: int, function: Callable[..., CallResult], *args: object, **kwargs: object) -> CallResult:
    if os.getpid() != caller and current_process().name.startswith(OF_JOBLIB):  # else it is in a thread of the caller
        follow(caller)
    return function(*args, **kwargs)


@cache
def follow(caller: int) -> None:
    # Not by the parent-death signal: it comes when the thread ends that has started the process.
    threading.Thread(target=end_after, args=(caller,), daemon=True, name="polyrhythm-tied").start()


def end_after(caller: int) -> None:
    while os.getppid() == caller:
        time.sleep(LOOK_S)
    os._exit(1)
