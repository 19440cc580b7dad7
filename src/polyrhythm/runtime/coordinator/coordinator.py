"""The coordinator: which worker may do what next, without sockets, tensors or clocks of its own.

Messages go in through `connect`, `receive` and `lost`; what comes out goes through `CoordinatorEffects`, which the
coordinator's process implements with sockets and parameter shards, and tests with lists. Every call runs to its end
before the next, so there are no locks.

**Phases.** A phase is one policy on one set of members. It ends when the policy is switched, when a member dies in
synchronous mode or when a worker joins one: everyone is brought to a stop between two steps (placed at the coordinator:
no more `Go`; synchronous mode: a `Token`), then a new phase starts on whoever is live. Positions that were handed out
but not processed go back to the workload.

**Epochs.** When no mini-batch of the epoch is left for a worker, it leaves the policy's sight as "finished" and then
stands at the epoch's end. When all do, all get the same parameters; with the next epoch they join again.
"""

import logging
import math
from collections.abc import Callable
from typing import Any

from polyrhythm.core import LeftReason, Policy
from polyrhythm.core.placement import runtime_placement
from polyrhythm.errors import UsageError
from polyrhythm.policies import BSP, parse_policy
from polyrhythm.runtime.coordinator.job import WORDS, CoordinatorEffects, Home, Job, Member, flow_of, workload_of
from polyrhythm.runtime.coordinator.phase_kind import PhaseKind
from polyrhythm.runtime.coordinator.rollback import Rollback
from polyrhythm.runtime.coordinator.stages import Stages, kind_of
from polyrhythm.runtime.coordinator.unsynchronised import UnsynchronisedSamples
from polyrhythm.runtime.wire.protocol import (
    Agreed,
    AtEnd,
    Bye,
    CollectiveFailed,
    Diverged,
    EpochDone,
    LocalStepDone,
    Phase,
    Pushed,
    Ready,
    Refused,
    Skipped,
    StateFlow,
    Stepped,
    SwitchTo,
    ToCoordinator,
    TookPart,
    Uploaded,
)

log = logging.getLogger(__name__)


class Coordinator:
    """Runs one job under a policy that can be switched.

    Args:
        policy: the first policy.
        workers: how many workers must be ready before the job starts.
        effects: see `CoordinatorEffects`.
        clock: seconds since the job's start.
        epochs: epochs that the job plans, for policies that count shares of the workload.
    """

    def __init__(
        self,
        policy: Policy[Any],
        workers: int,
        effects: CoordinatorEffects,
        clock: Callable[[], float],
        epochs: int = 1,
    ) -> None:
        self.plan(policy, epochs)
        self.job, self.phase = Job(workers, effects, clock), 0
        self._awaited = set(range(workers))
        self._home: Home = "start"
        self._stepping = self._stop_wanted = False
        self._phase_members: tuple[int, ...] = ()
        self._contributors: tuple[int, ...] = ()
        self._unsynchronised, self._rollback = UnsynchronisedSamples(self.job), Rollback(self.job)
        self._mode = PhaseKind()
        self.next_policy: Policy[Any] | None = None
        self._uploading: int | None = None

    def plan(self, policy: Policy[Any], epochs: int) -> None:
        """The first policy and number of epochs; may be changed until the first worker connects."""
        self.stages, self.policy, self._epochs = Stages(policy, epochs), policy, epochs

    # -- what comes in ---------------------------------------------------------------------------------------------

    def connect(self, worker: int) -> None:
        if worker in self.job.members:
            raise UsageError(f"rank {worker} is already part of this job; start each rank once")
        self.job.members[worker] = Member()
        self._awaited.discard(worker)

    @property
    def figures(self) -> dict[str, float]:
        return self._mode.figures

    @property
    def awaits(self) -> bool:
        return bool(self._awaited)

    def absent(self, worker: int) -> None:
        if worker in self._awaited:
            log.warning("rank %d ended before it joined; going on without it", worker)
            self._awaited.discard(worker)
            self._meet()

    def receive(self, worker: int, message: ToCoordinator) -> None:
        match message:
            case Pushed():
                self._mode.pushed(worker, message)
            case Stepped():
                self._mode.stepped(worker, message)
            case LocalStepDone():
                self._mode.moved(worker, message)
            case Skipped():
                self._mode.skipped(worker, message)
            case TookPart():
                self._mode.merged(worker, message)
                self._meet()
            case Agreed() if message.phase == self.phase:
                self._unsynchronised.settle()
                self._rollback.arrived()
                self._mode.agreed(worker)
            case CollectiveFailed() if message.phase == self.phase:
                self._collective_failed(worker, message)
            case Uploaded() if message.phase == self.phase and self._uploading is not None:
                self._uploading = None
                self._start_steps()
            case AtEnd(phase=phase):
                self.job.members[worker].at_end |= phase == self.phase
                self._meet()
            case Ready():
                self._ready(worker, message)
            case SwitchTo():
                self.switch(parse_policy(message.policy))
            case Diverged():
                if self._rollback.diverged(worker, message, self._stepping and message.phase == self.phase):
                    self.stages = Stages(BSP(), self._epochs)
                    self._request_stop()
            case Bye():
                self.lost(worker, "removed" if self._steps(worker) else "finished")
        self._go_on_if_standing()

    def lost(self, worker: int, reason: LeftReason) -> None:
        member = self.job.members.get(worker)
        if member is None:
            return
        tell = log.info if reason == "finished" else log.warning
        tell(
            "rank %d %s in phase %d (%s), epoch %d", worker, WORDS[reason], self.phase, self.policy.spec, self.job.epoch
        )
        was_present = worker in self.job.present
        del self.job.members[worker]
        if self._stepping and was_present:
            self._lost_while_stepping(worker, member, reason)
        self._go_on_if_standing()
        self._meet()

    def switch(self, policy: Policy[Any]) -> None:
        """Change the policy at the next moment at which everyone can be brought to a stop."""
        if policy != self.stages.policy:
            self.stages, self.next_policy = Stages(policy, self._epochs), policy
            self._request_stop_for_switch()
            self._go_on_if_standing()

    def alarm(self) -> None:
        self._mode.alarm()

    # -- epochs ----------------------------------------------------------------------------------------------------

    def _ready(self, worker: int, message: Ready) -> None:
        if refusal := self.job.refusal(message):
            self.job.effects.send(worker, Refused(refusal))
        elif message.epoch < self.job.epoch or (message.epoch == self.job.epoch and not self._stepping):
            # A newcomer's loop starts at epoch 0 and runs through those that are over without a batch.
            self.job.effects.send(worker, EpochDone(message.epoch, self.job.version))
        elif message.epoch == self.job.epoch:
            self._admit(worker, message)
        else:
            if self._steps(worker):
                self._withdraw(worker)
            self.job.members[worker].ready = message
            self._meet()

    def _steps(self, worker: int) -> bool:
        return self._stepping and worker in self.job.present and not self.job.members[worker].at_end

    def _withdraw(self, worker: int) -> None:
        """A script has left its loop early: the others process what is left of the epoch."""
        log.warning("rank %d left its loop over epoch %d early", worker, self.job.epoch)
        member = self.job.members[worker]
        self.job.members[worker] = Member()
        self._phase_members = tuple(w for w in self._phase_members if w != worker)
        self._lost_while_stepping(worker, member, "removed")
        self._go_on_if_standing()

    def _admit(self, worker: int, message: Ready) -> None:
        self.job.members[worker].ready = message
        if self._mode.admits and not self._stop_wanted:
            self._send_phase((worker,), "keep", worker, ())
            if self._uploading is None:  # otherwise it starts with all others
                self._mode.join(worker)
        else:
            self._request_stop()

    def _meet(self) -> None:
        started = [m for m in self.job.members.values() if m.ready is not None]
        if self._stepping:
            present = self.job.present
            if not present:
                self._abandon_epoch()
            elif self._uploading is None and all(self.job.members[w].at_end for w in present):
                self._end_epoch()
        if self._stepping:
            return
        waiting = self.job.epoch < 0 and (self._awaited or len(started) < len(self.job.members))
        if started and not waiting and all(m.ready and m.ready.epoch > self.job.epoch for m in started):
            self._begin_epoch(started[0].ready)

    def _begin_epoch(self, ready: Ready | None) -> None:
        assert ready is not None, "an epoch begins when workers are ready"
        if self.job.epoch < 0:
            self.job.first_epoch = ready.epoch  # which is not 0 if the job was resumed
            self.job.workload = workload_of(ready)
            if ready.processed:
                self.job.workload.hand_out(ready.processed)
                self.job.samples += ready.processed
        else:
            self.job.workload.extend(ready.dataset_samples)
        self.job.epoch = ready.epoch
        self._rollback.begin_epoch(self._phase_members)
        self._stepping = True
        due = self.next_policy or self.stages.stage(self.job).policy
        if not self._mode.runs or due != self.policy or set(self.job.present) != set(self._phase_members):
            self._start_phase()
        else:
            self._start_steps()

    def _end_epoch(self) -> None:
        """All stand at the end; if a worker died with positions in hand, the others process those first."""
        if self._mode.may_end() and self._rollback.goes_back:
            self._start_phase()
        elif self._mode.may_end():
            (self._start_steps if self.job.workload.left else self._finish_epoch)()

    def _finish_epoch(self) -> None:
        self._stepping = False
        for worker in self.job.present:
            self.job.members[worker].at_end = False
            self.job.effects.send(worker, EpochDone(self.job.epoch, self.job.version))

    def _abandon_epoch(self) -> None:
        """Nobody stands in the epoch any more; what is left of it is skipped."""
        if self._mode.on_workers:
            self._mode.take_back()
            replicas = "replicas" in self.policy.traits.exchanges
            self._contributors = self._mode.live if replicas else self._mode.sound[:1]
            self._unsynchronised.note(self._mode.unsynchronised())
        self._mode.finish()
        self._unsynchronised.revoke()
        if self._uploading is not None:  # the state did not come to the servers
            self._home = "workers"
        self._mode, self._uploading, self._stepping = PhaseKind(self.phase), None, False
        self.job.skipped_samples += self.job.workload.left
        self.job.workload.drain()

    # -- phases ----------------------------------------------------------------------------------------------------

    def _request_stop(self) -> None:
        self._stop_wanted = True
        self._mode.request_stop()

    def _request_stop_for_switch(self) -> None:
        """Stop in the middle of the epoch only if enough is left of it; otherwise its end will do."""
        sizes = [m.ready.batch_size for m in self.job.members.values() if m.ready]
        if self._stepping and self._mode.runs and self._mode.left >= 2 * sum(sizes):
            self._request_stop()

    def _go_on_if_standing(self) -> None:
        if not self._stepping or self._uploading is not None:
            return
        due = self._mode.end_samples < math.inf and self.job.done_samples >= self._mode.end_samples
        if due and not self._stop_wanted and self.job.present:
            self._request_stop_for_switch()
        if (self._stop_wanted or self._mode.stops_by_itself) and self.job.present and self._mode.standing:
            self._start_phase()

    def _collective_failed(self, worker: int, message: CollectiveFailed) -> None:
        if message.completed == 0:
            self._unsynchronised.revoke()
        log.warning("rank %d: exchange failed after step %d: %s", worker, message.completed, message.detail)
        if self._mode.on_workers:
            self._mode.collective_failed(worker, message)
            self._request_stop()
        else:
            self._restart_phase()

    def _lost_while_stepping(self, worker: int, member: Member, reason: LeftReason) -> None:
        if self._uploading == worker:
            self._restart_phase()
        else:
            self._mode.lost(worker, member, reason)
            self._stop_wanted |= self._mode.on_workers

    def _restart_phase(self) -> None:
        """The state did not come to the servers: the members agree on it and upload it once more."""
        self._mode, self._uploading, self._home = PhaseKind(self.phase), None, "workers"
        if self.job.present:
            self._start_phase()

    def _start_phase(self) -> None:
        contributors = self._end_phase()
        if self._rollback.goes_back:
            contributors, self._home = self._rollback.go_back(), "workers"
            self._unsynchronised.settle()
        self.next_policy = self.stages.stage(self.job).policy
        self.policy, self.next_policy = self.next_policy or self.policy, None
        on_servers = runtime_placement(self.policy) == "servers"
        state = flow_of(self._home, on_servers)
        if on_servers and self._home != "workers":  # at first all have the same, and later the servers have it
            contributors = ()
        self._home = "servers" if on_servers else "workers"
        self._open_phase(state, contributors)

    def _open_phase(self, state: StateFlow, contributors: tuple[int, ...]) -> None:
        self.phase += 1
        self._stop_wanted = False
        cluster = self.job.cluster(self._epochs)
        self.job.effects.begin_phase(self.phase, self.policy, cluster)
        self._mode = kind_of(self.policy)(self.phase, self.job, self.policy, cluster)
        stage = self.stages.stage(self.job)
        self._mode.end_samples, self._mode.drops = stage.end_samples, stage.drops
        self._phase_members = self.job.present
        self._contributors = contributors
        if contributors:
            self._mode.await_agreement(self._phase_members)
        source = (contributors or self._phase_members)[0]
        self._send_phase(self._phase_members, state, source, contributors)
        if state == "upload":
            self._uploading = source
        else:
            self._start_steps()

    def _end_phase(self) -> tuple[int, ...]:
        """Whose state the members must agree on before they go on; nobody's if they agree already."""
        present = self.job.present
        if not self._mode.started:
            return tuple(worker for worker in self._contributors if worker in present) or present[:1]
        old = tuple(worker for worker in present if worker in self._phase_members)
        if not self._mode.on_workers:
            self._mode.finish()
            return ()
        sound, apart = self._mode.sound, tuple(worker for worker in self._mode.apart if worker in present)
        self._unsynchronised.note(self._mode.unsynchronised())
        self._mode.finish()
        following = (self.next_policy or self.policy).traits
        if apart or ("replicas" in self.policy.traits.exchanges and "gradients" in following.exchanges):
            return apart or old  # each has an optimizer state of its own, from which one is to be made
        return () if sound == present else (sound or old)[:1]

    def _send_phase(
        self, workers: tuple[int, ...], state: StateFlow, source: int, contributors: tuple[int, ...]
    ) -> None:
        cluster, members, version = self.job.cluster(self._epochs), self.job.present, self.job.version
        counts = cluster.batch_size, cluster.workload_samples, cluster.processed_samples, self._rollback.epoch
        phase = Phase(self.phase, self.policy.spec, members, source, contributors, state, version, *counts)
        for worker in workers:
            self.job.effects.send(worker, phase)

    def _start_steps(self) -> None:
        left, workers = self.job.workload.left, len(self.job.present)
        if self._mode.together and left < workers:
            self.job.skipped_samples += left
            self.job.workload.drain()
            self._finish_epoch()
        else:
            self._mode.start()
