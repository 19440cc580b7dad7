"""What a wrong policy does, in words: nothing here is called while a policy keeps its contract."""

import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, get_args

from polyrhythm.core.policy import Policy, Traits
from polyrhythm.core.types import (
    Cancel,
    Decision,
    Event,
    Exchange,
    Joined,
    Left,
    MeasureLoss,
    Proceed,
    Report,
    Settings,
    Stop,
    Stopped,
    Sync,
    Synced,
    Wake,
)
from polyrhythm.errors import PolicyError, line_of, shown

NAMED = 8
"""How many workers a message names."""


def located(event: Event) -> str:
    """An event by its kind and its workers, as it is in all drivers: without times.

    >>> located(Joined((0, 1), 0.5)), located(Report(1, 3, 2.5))
    ('Joined of workers 0, 1', 'Report of worker 1 with clock 3')
    """
    match event:
        case Joined(workers=workers):
            more = ", ..." if len(workers) > NAMED else ""
            return f"Joined of workers {', '.join(map(str, workers[:NAMED]))}{more}"
        case Stopped(worker=worker):
            return f"Stopped of worker {worker}"
        case Report() | Left():
            return f"{type(event).__name__} of worker {event.worker} with clock {event.clock}"
        case _:
            return f"{type(event).__name__} of {event.time_s:g} s"


def raised(policy: Policy[Any], error: BaseException, when: str) -> PolicyError:
    """What a policy has raised, when, and in which line."""
    return PolicyError(f"policy {policy.spec} raised {shown(error)} {when}{line_of(error)}")


def misshapen(answer: Any) -> str:
    """What is wrong with something that is no pair of a state and a tuple of decisions."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        return f"decide must return a state and decisions but returned {shown(answer)}"
    return f"decide must return a tuple of decisions but returned {shown(answer[1])}, which is not a tuple of decisions"


def misshown(figures: Any) -> str:
    """What is wrong with the figures of a policy; empty if nothing is.

    >>> misshown({"threshold": "high"})
    "figures must be numbers by name, as in {'threshold': 0.3}, but are {'threshold': 'high'}"
    """
    if isinstance(figures, dict) and all(isinstance(k, str) and hasattr(v, "__float__") for k, v in figures.items()):
        return ""
    return f"figures must be numbers by name, as in {{'threshold': 0.3}}, but are {shown(figures)}"


def deadlocked(policy: Policy[Any], now_s: float, waiting: Sequence[int], samples_left: int) -> PolicyError:
    """Everyone waits, and nothing is due that the policy would be told."""
    named = ", ".join(map(str, waiting[:NAMED])) + (", ..." if len(waiting) > NAMED else "")
    who = f"workers {named} wait" if len(waiting) > 1 else f"worker {named} waits"
    return PolicyError(
        f"policy {policy.spec} is deadlocked at {now_s:g} s: {who}, none runs, "
        f"and {samples_left} samples are left; release somebody when the last report or Left arrives"
    )


def malformed(decisions: Iterable[Any]) -> str:
    """What is wrong with the first of these that no driver could carry out; empty if there is none.

    >>> malformed((Proceed((0,)), Sync(0)))
    'Sync.workers must be a tuple of workers but got 0; write (0,) for one'
    """
    return next((reason for decision in decisions if (reason := _malformed(decision))), "")


def undeclared(decisions: Iterable[Decision], traits: Traits) -> str:
    """Which of these needs more than the policy's traits say; empty if none does."""
    for decision in decisions:
        if isinstance(decision, Cancel) and not traits.cancels:
            return f"{decision} needs Traits(cancels=True)"
        if isinstance(decision, Stop) and traits.waits:
            return f"{decision} needs Traits(waits=False): workers that wait for answers need no word to stop"
        if isinstance(decision, Proceed) and decision.exchange not in traits.exchanges:
            return f"{decision} needs {decision.exchange!r} in Traits(exchanges=...)"
        if isinstance(decision, Proceed) and decision.shares is not None and not traits.shares:
            return f"{decision} needs Traits(shares=True)"
        if isinstance(decision, Sync) and decision.what != "gradients" and "replicas" not in traits.exchanges:
            return f"{decision} needs 'replicas' in Traits(exchanges=...)"
        if isinstance(decision, MeasureLoss) and "probe_loss" not in traits.needs:
            return f"{decision} needs 'probe_loss' in Traits(needs=...)"
        if isinstance(decision, Wake) and traits.placement != "coordinator":
            return f"{decision} needs Traits(placement='coordinator'): ranks that decide by themselves share no clock"
    return ""


def _malformed(decision: Any) -> str:
    match decision:
        case Sync():
            return _malformed_workers(decision) or _malformed_sync(decision)
        case Proceed():
            return _malformed_workers(decision) or _malformed_proceed(decision)
        case Cancel() | Stop():
            return _malformed_workers(decision)
        case Wake(time_s=time_s):
            return "" if _is_number(time_s) else _no_time(f"{type(decision).__name__}.time_s", time_s)
        case _:
            return f"decide returned {shown(decision)}, which is not a decision"


def _no_time(name: str, value: Any) -> str:
    return f"{name} must be a number that a float can hold but got {shown(value)}"


def _malformed_workers(decision: Sync | Proceed | Cancel | Stop) -> str:
    for name in ("workers", "adopters"):
        workers: Any = getattr(decision, name, None)
        if (workers is None and name == "adopters") or _is_tuple_of(workers, int):
            continue
        remedy = f"; write ({workers},) for one" if isinstance(workers, int) else ""
        return f"{type(decision).__name__}.{name} must be a tuple of workers but got {workers!r}{remedy}"
    return ""


def _malformed_sync(sync: Sync) -> str:
    fragment, delay = sync.fragment, sync.delay
    if sync.what not in get_args(Synced):
        return f"Sync.what must be {', '.join(get_args(Synced))} but got {sync.what!r}"
    if sync.weights is not None and not _is_tuple_of(sync.weights, int | float):
        return f"Sync.weights must be a tuple of numbers but got {sync.weights!r}"
    if fragment is not None and not (
        _is_tuple_of(fragment, int) and len(fragment) == 2 and 0 <= fragment[0] < fragment[1]
    ):
        return f"Sync.fragment must be an index and a count above it but got {fragment!r}"
    if not isinstance(delay, int) or delay < 0:
        return f"Sync.delay must be a whole number of at least 0 but got {delay!r}"
    return ""


def _malformed_proceed(decision: Proceed) -> str:
    settings: Any = decision.settings
    if decision.exchange not in get_args(Exchange):
        return f"Proceed.exchange must be {' or '.join(get_args(Exchange))} but got {decision.exchange!r}"
    if reason := _malformed_shares(decision):
        return reason
    if settings is None:
        return ""
    if not isinstance(settings, Settings):
        return f"Proceed.settings must be Settings but got {settings!r}"
    if settings.batch_size is not None and not (isinstance(settings.batch_size, int) and settings.batch_size > 0):
        return f"Settings.batch_size must be a whole number of at least 1 but got {settings.batch_size!r}"
    for name in ("lr_scale", "momentum"):
        value = getattr(settings, name)
        if value is not None and not (_is_number(value) and math.isfinite(value)):
            return f"Settings.{name} must be a finite number but got {shown(value)}"
    return ""


def _malformed_shares(decision: Proceed) -> str:
    shares = decision.shares
    if shares is None:
        return ""
    if not _is_tuple_of(shares, int) or len(shares) != len(decision.workers) or min(shares, default=1) < 1:
        return f"Proceed.shares must be a whole number of at least 1 for each of its workers but got {shares!r}"
    if decision.settings is not None and decision.settings.batch_size is not None:
        return f"Proceed sets shares and a batch_size of {decision.settings.batch_size}; give one of them"
    return ""


def uneven(decision: Proceed, batch_size: int) -> str:
    """What is wrong with shares that do not make up the mini-batches of their workers; empty if they do.

    >>> uneven(Proceed((0, 1), shares=(5, 4)), batch_size=4)
    'Proceed.shares (5, 4) are 9 samples but 2 workers with mini-batches of 4 have 8'
    """
    shares, workers = decision.shares or (), len(decision.workers)
    if not shares or sum(shares) == workers * batch_size:
        return ""
    return (
        f"Proceed.shares {shares} are {sum(shares)} samples but {workers} workers with mini-batches of {batch_size} "
        f"have {workers * batch_size}"
    )


def _is_number(value: Any) -> bool:
    """Whether it is one that a float can hold, if not exactly: a larger integer fails in the arithmetic of times."""
    return isinstance(value, float) or (isinstance(value, int) and abs(value) <= sys.float_info.max)


def _is_tuple_of(value: Any, kind: Any) -> bool:
    return isinstance(value, tuple) and all(isinstance(item, kind) for item in value)
