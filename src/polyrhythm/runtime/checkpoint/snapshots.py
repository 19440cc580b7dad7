"""Which checkpoint a phase begins with, and from which one the job goes on: the coordinator's side, without files.

A checkpoint is taken where a phase begins: all stand between two steps, what was handed out and not processed is back
in the workload, and the state is in one place. The policy goes on from its state as it was, all workers having left
and come back, as at the end of an epoch; whoever resumes begins with the same.
"""

import logging
from typing import Any, Protocol

import msgspec

from polyrhythm.core.policy_state import decode_state, encode_state
from polyrhythm.errors import UsageError
from polyrhythm.runtime.checkpoint.manifest import JobSnapshot, Position
from polyrhythm.runtime.wire.protocol import Phase, Ready
from polyrhythm.runtime.wire.recovery.resumption import Resumption
from polyrhythm.runtime.wire.shard_protocol import other_term
from polyrhythm.training.data.fingerprint import alike

log = logging.getLogger(__name__)


class Keeps(Protocol):
    """Who is given what is to be kept; see `polyrhythm.runtime.coordinator.job.CoordinatorEffects`."""

    def keep(self, snapshot: JobSnapshot) -> None: ...


class Standing(Protocol):
    @property
    def effects(self) -> Keeps: ...

    @property
    def position(self) -> Position: ...


class Resting(Protocol):
    """A phase, between two epochs."""

    @property
    def resting(self) -> Any: ...


class SupervisorStages(Protocol):
    """See `polyrhythm.runtime.coordinator.stages.Stages`."""

    def resume(self, known: Any) -> None: ...


class ChoiceOfPolicy(Protocol):
    """Which policy the job runs; see `polyrhythm.runtime.coordinator.stages.PolicyChoice`."""

    @property
    def spec(self) -> str: ...

    @property
    def stages(self) -> SupervisorStages: ...


class Snapshots:
    """The checkpoints of a job.

    Attributes:
        wanted: whether the next phase begins with one.
        number: of the checkpoint with which the phase at hand begins; 0 if with none.
        resumed: what the job goes on from, until it does.
        of_script: whether the job is that of an unmodified script, for which nobody stops.
    """

    def __init__(self) -> None:
        self.wanted = self.of_script = False
        self.number = 0
        self.resumed: JobSnapshot | None = None
        self._latest = self._saver = 0
        self._streams: dict[int, bytes] = {}
        self._rested = ("", "")

    def resume(self, snapshot: JobSnapshot) -> None:
        self.resumed, self._latest = snapshot, snapshot.number
        self._rested = snapshot.in_force, snapshot.state

    def count_from(self, number: int) -> None:
        self._latest = max(self._latest, number)

    def begin_in(self, policy: str, state: str) -> None:
        """The next phase begins with this policy in this state, as text, if it is under this policy."""
        self._rested = policy, state

    def lead(self, resumed: Resumption | None, choice: ChoiceOfPolicy) -> None:
        """The job goes on from a script's own checkpoint within an epoch, if that was made under the same policy."""
        if resumed is None:
            return
        self.begin_in(resumed.policy, resumed.state)
        if choice.spec == resumed.chosen:
            choice.stages.resume(decoded(choice.spec, resumed.known))

    def rest(self, policy: str, state: Any) -> None:
        """A phase under this policy is over; `state` is the policy's, all workers having left."""
        if self.wanted:
            self._rested = policy, encoded(policy, state)

    def open(self, saver: int) -> int:
        """A phase opens; the number of the checkpoint that it begins with, which this worker would write."""
        self._streams.clear()
        self._saver = saver
        self._latest += self.stops
        self.number = self._latest if self.stops else 0
        return self.number

    @property
    def stops(self) -> bool:
        """Whether a phase is to begin with a checkpoint."""
        return self.wanted and not self.of_script

    def state_for(self, policy: str) -> str:
        """The state in which the policy of a phase begins; nothing: as ever."""
        return self._rested[1] if self._rested[0] == policy else ""

    def decoded_for(self, policy: str) -> Any:
        text = self.state_for(policy)
        state = decoded(policy, text)
        if text and state is None:
            self._rested = ("", "")
        return state

    def known_of(self, policy: str) -> Any:
        """What a policy that watches the job knew, if it goes on; None if that is nothing, or cannot be read."""
        return decoded(policy, self.resumed.known if self.resumed is not None and self.resumed.policy == policy else "")

    def complete(self, message: Phase, worker: int, saves: int) -> Phase:
        streams = self.resumed.streams.get(worker, b"") if self.resumed is not None else b""
        state = self.state_for(message.policy)
        return msgspec.structs.replace(message, save=saves, policy_state=state, streams=streams)

    @property
    def position(self) -> Position | None:
        """Where the job goes on from, until it does; a script begins where its own snapshot says."""
        return None if self.resumed is None or self.resumed.script else self.resumed.position

    def is_past(self, epoch: int) -> bool:
        return self.position is not None and epoch < self.position.epoch

    def heard(self, worker: int, streams: bytes) -> None:
        self._streams[worker] = streams

    def enter(self, job: Standing, policy: str, in_force: str, known: Any = None) -> None:
        """All stand in the phase: keep what is to be kept, if it begins with a checkpoint."""
        state, self._rested, self.resumed = self.state_for(in_force), ("", ""), None
        if not self.number:
            return
        own = self.number, job.position, policy, in_force, state, dict(self._streams), self._saver
        made = JobSnapshot(*own, known=encoded(policy, known))
        self.wanted, self.number = False, 0
        job.effects.keep(made)

    def begin_epoch(self, job: Standing, policy: str, in_force: str, phase: Resting, known: Any = None) -> None:
        """An epoch begins: keep what is to be kept of a script, which has snapshots of its own of everything else."""
        position = job.position
        self.of_script = position.ready.script is not None
        if not self.of_script:
            return
        if self.resumed is not None:
            tell_script(position, self.resumed.position)
        if not self.wanted:
            return
        self._latest, self.wanted = self._latest + 1, False
        state = encoded(in_force, phase.resting)
        own = self._latest, position, policy, in_force, state
        job.effects.keep(JobSnapshot(*own, {}, script=True, known=encoded(policy, known)))

    def refusal(self, message: Ready) -> str:
        """Why a worker cannot go on from the checkpoint; empty if it can."""
        if self.resumed is None:
            return ""
        position = self.resumed.position
        if (message.script is None) == self.resumed.script:
            one, other = ("a session", "a script") if message.script is None else ("a script", "a session")
            return f"it is {one}, and the checkpoint is of {other}; give another --checkpoint"
        if message.epoch > position.epoch and not self.resumed.script:
            return f"it starts at epoch {message.epoch}, and the job goes on at epoch {position.epoch}"
        if self.resumed.script and message.own != position.ready.own:
            return ""  # as it passes over the mini-batches that its own snapshot has, say
        return other_data(message, position.ready)


def tell_script(now: Position, kept: Position) -> None:
    log.info(
        "the script begins with what the job counts as epoch %d, and the checkpoint is of epoch %d; what was made of "
        "epoch %d and after it counts as made again",
        *(now.epoch, kept.epoch, now.epoch),
    )


def encoded(policy: str, state: Any, level: int = logging.WARNING) -> str:
    """The state as text; nothing, and a line of this level, if it cannot be kept."""
    if state is None:
        return ""
    try:
        return encode_state(state)
    except UsageError as error:
        log.log(level, "policy %s will begin anew: %s", policy, error)
        return ""


def decoded(policy: str, text: str) -> Any:
    """The state of a text; nothing, and a line, if it cannot be read here."""
    try:
        return decode_state(text) if text else None
    except UsageError as error:
        log.warning("policy %s begins anew: %s", policy, error)
        return None


def other_data(own: Ready, kept: Ready) -> str:
    """What a worker says otherwise of its data than the checkpoint; empty if both agree."""
    if own.dataset_samples != kept.dataset_samples and not own.own:  # of their own, which may be of any length
        counts = f"its data set has {own.dataset_samples} samples, that of the checkpoint {kept.dataset_samples}"
        return f"{counts}; give another --checkpoint"
    if name := other_term(own.terms, kept.terms):
        ours, theirs = own.terms.get(name), kept.terms.get(name)
        return f"its loader has {name}={ours}, that of the checkpoint {name}={theirs}; give the same {name}"
    if (own.shards, own.rotate) != (kept.shards, kept.rotate):
        return "its loader cuts the data set otherwise than the checkpoint; start as many workers as were planned then"
    same = len(own.content) == len(kept.content) and all(map(alike, own.content, kept.content))
    return "" if same else "a sample of its data set is another one than in the checkpoint; give another --checkpoint"
