"""What every policy must keep, checked on one script; the message of a failure shows how it came to it."""

import io
import pickle
from dataclasses import replace
from itertools import pairwise, zip_longest
from typing import Any

from polyrhythm.core import Decisions, Event, Policy, Report, Trace, TraceWriter, replay
from polyrhythm.core.misuse import undeclared
from polyrhythm.core.workload import SampleRange
from polyrhythm.errors import PolicyError, PolyrhythmError
from polyrhythm.testing.script import ClusterScript
from polyrhythm.testing.stage import Decide, ScriptPlayer

SHOWN = 8
"""How many of the last events a failure shows."""


class ConformanceError(AssertionError):
    """A policy breaks a law; the message has the law, the policy, the last events and the script."""


class Breach(Exception):  # noqa: N818 (a signal inside this module, not an error that anyone sees)
    """Which law, and how."""

    def __init__(self, law: str, reason: str) -> None:
        super().__init__(law, reason)
        self.law = law
        self.reason = reason


def check(policy: Policy[Any], script: ClusterScript) -> ScriptPlayer:
    """Play `script` under `policy` and check every law.

    - contract: only decisions that `polyrhythm.core.policy` allows; no alarm in the past, and no end without progress;
    - traits: only the exchanges and cancellations that the policy's traits declare;
    - pure: the same state and event give the same result, and the state stays as it was;
    - picklable: a state equals its unpickled copy, and the run goes on with the copy;
    - bounds: lead and staleness stay within what `Policy.bounds` says;
    - no deadlock: nobody is left waiting when nothing more is due;
    - every gradient: a `Sync` takes all that its workers have pending, so that none is forgotten and applied later;
    - every sample: each is processed once, or was lost with a worker and is counted;
    - deterministic: a second run gives the same trace, byte for byte;
    - replayable: the trace survives its codec, and the policy decides the same again.

    Raises:
        ConformanceError: if one is broken. An exception of the policy itself passes through, with the last events as
            a note.
    """
    stage = ScriptPlayer(policy, script, examined(policy), watch_bounds)
    try:
        stage.play()
        check_end(stage)
        check_trace(stage)
    except Breach as breach:
        raise failure(breach.law, breach.reason, stage) from breach.__cause__
    except PolicyError as error:
        raise reported(error, stage) from error.__cause__
    except Exception as error:
        error.add_note(story(stage))
        raise
    return stage


def reported(error: PolicyError, stage: ScriptPlayer) -> Exception:
    """What a test is told when the driver refuses a policy: which law, or the policy's own exception as it is."""
    match error.__cause__:
        case Breach() as breach:
            return failure(breach.law, breach.reason, stage)
        case PolicyError() as reason:
            return failure("contract", str(reason), stage)
        case Exception() as own:
            own.add_note(f"{error}\n{story(stage)}")
            return own
    return failure("contract", str(error), stage)


def examined(policy: Policy[Any]) -> Decide:
    """`policy.decide` with the laws that concern a single decision; it returns an unpickled copy of the new state."""

    def decide(state: Any, event: Event) -> tuple[Any, Decisions]:
        frozen = pickled(state)
        result: Any = policy.decide(state, event)
        if not isinstance(result, tuple) or len(result) != 2:
            return result  # which the driver refuses
        after, decisions = result
        if policy.decide(state, event) != result:
            raise Breach("pure", f"two calls of decide with the same state and {event} differ")
        if pickle.loads(frozen) != state:  # noqa: S301 (it was pickled above)
            raise Breach("pure", f"decide changed the state that it was given with {event}")
        if isinstance(decisions, tuple) and (reason := undeclared(decisions, policy.traits)):
            raise Breach("traits", reason)
        copy = pickle.loads(pickled(after))  # noqa: S301 (it was pickled above)
        if copy != after:
            raise Breach("picklable", f"a state differs from its unpickled copy after {event}: {after}")
        return copy, decisions

    return decide


def pickled(state: Any) -> bytes:
    """The state as bytes."""
    try:
        return pickle.dumps(state)
    except Exception as error:
        raise Breach("picklable", f"a state cannot be pickled: {error}") from error


def watch_bounds(stage: ScriptPlayer, event: Event) -> None:
    """Lead and staleness after `event`."""
    bounds = stage.policy.bounds(replace(stage.cluster, workers=stage.script.everyone))
    clocks = {worker: account.clock for worker, account in stage.ledger.accounts.items()}
    lead = max(clocks.values()) - min(clocks.values()) if clocks else 0
    if lead > bounds.lead:
        raise Breach("bounds", f"the lead is {lead}, its bound {bounds.lead}; clocks are {clocks}")
    if isinstance(event, Report) and event.staleness > bounds.staleness:
        raise Breach("bounds", f"the staleness is {event.staleness}, its bound {bounds.staleness}")


def check_end(stage: ScriptPlayer) -> None:
    """Nobody waits, and every sample is accounted for."""
    if stage.ledger.accounts:
        waiting = ", ".join(map(str, stage.ledger.accounts))
        raise Breach("no deadlock", f"workers {waiting} wait, and nothing more is due")
    if stage.behind:
        raise Breach("every gradient", f"a Sync named worker {stage.behind[0]} and left a gradient of it pending")
    if stage.left and not stage.deaths:
        raise Breach("every sample", f"nobody died, but {stage.left} was not processed")
    epochs = (stage.script.total_samples - 1) // stage.script.dataset_samples + 1
    if not tiles([*stage.processed, *stage.lost, *stage.left], epochs):
        raise Breach("every sample", f"processed {stage.processed}, lost {stage.lost}, left {stage.left}")
    ledger = stage.ledger
    if ledger.computed != ledger.applied + ledger.dropped.total() or ledger.applied != len(stage.processed):
        raise Breach("every sample", f"{ledger} for {len(stage.processed)} mini-batches")


def tiles(sample_ranges: list[SampleRange], epochs: int) -> bool:
    """Whether these sample ranges lie one behind the other, in each of `epochs` epochs, without a gap or an overlap."""
    ordered = sorted(sample_ranges)
    starts = all(
        sample_range.start == (before.stop if before.epoch == sample_range.epoch else 0)
        for before, sample_range in pairwise(ordered)
    )
    return starts and ordered[0].start == 0 and len({sample_range.epoch for sample_range in ordered}) == epochs


def check_trace(stage: ScriptPlayer) -> None:
    """The run can be repeated, and its trace be read and replayed."""
    text = written(stage.trace)
    again = written(ScriptPlayer(stage.policy, stage.script).play().trace)
    if text != again:
        line = next(a for a, b in zip_longest(text.splitlines(), again.splitlines(), fillvalue="its end") if a != b)
        raise Breach("deterministic", f"a second run differs from {line}")
    trace = Trace.parse(io.StringIO(text))
    if trace != stage.trace:
        raise Breach("replayable", "the trace differs after it is written and read")
    try:
        for _ in replay(stage.policy, trace):
            pass
    except PolyrhythmError as error:
        raise Breach("replayable", str(error)) from error


def written(trace: Trace) -> str:
    """A trace as text."""
    stream = io.StringIO()
    writer = TraceWriter(stream, trace.header)
    for entry in trace.entries:
        writer.write(*entry)
    return stream.getvalue()


def failure(law: str, reason: str, stage: ScriptPlayer) -> ConformanceError:
    """The failure, with what came before it."""
    return ConformanceError(f"{stage.policy.spec} breaks the law {law!r}: {reason}\n{story(stage)}")


def story(stage: ScriptPlayer) -> str:
    """The last events with what was decided, and how to see them again."""
    shown = [f"  {event}\n    -> {decisions}" for event, decisions in stage.entries[-SHOWN:]]
    return "\n".join([f"last {len(shown)} events:", *shown, f"rerun: check(policy, {stage.script})"])
