"""How far a worker has come, for a coordinator that takes the place of one that has died, and how far the job has, for
a script's own checkpoint within an epoch.
"""

from polyrhythm.core.workload import SampleRange
from polyrhythm.runtime.wire.protocol import ControlMessage, Natural, Positive, Ready
from polyrhythm.runtime.wire.recovery.resumption import Resumption


class Returned(ControlMessage):
    """The first words of a worker to a coordinator that takes the place of one that has died: how far it has come.

    `ready` is the last that it has said, `done` that this epoch is over for it, `phase` the last that it was told of,
    and `inside` that it has entered that. The others are of the `run`-th time in this phase that the steps of an epoch
    began: in synchronous mode the number of `completed` steps, and `exchanged` and `shared` as in `Stepped`; those that
    were `skipped`; the `shares` that came into force, with the first step of each. In local-step mode the positions
    that it has `processed` before the last of the `merges` exchanges that it has completed; what it has put into that
    one and into those under way, the `offers` by number; and those that only it has seen since, `alone`.
    `state` is that of the policy, if it is run by every rank.
    """

    ready: Ready | None = None
    done: bool = False
    phase: Natural = 0
    inside: bool = False
    run: Natural = 0
    completed: Natural = 0
    exchanged: Natural = 0
    shared: tuple[Natural, ...] = ()
    skipped: tuple[Natural, ...] = ()
    shares: tuple[tuple[Natural, tuple[Positive, ...]], ...] = ()
    merges: Natural = 0
    processed: tuple[SampleRange, ...] = ()
    offers: tuple[tuple[Natural, tuple[SampleRange, ...]], ...] = ()
    alone: tuple[SampleRange, ...] = ()
    state: str = ""


class AskState(ControlMessage):
    """How is the job now? With the servers' state, if that is asked for in the same moment."""


class JobState(ControlMessage):
    """The answer: what is left of the epoch, if the servers have the parameters, in this `version`.

    Where the workers have them, there is none, and they know themselves what is left.
    """

    resumption: Resumption
    version: Natural | None = None
