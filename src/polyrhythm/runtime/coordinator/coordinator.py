"""The coordinator: which worker may do what next, without sockets, tensors or clocks of its own.

Messages go in through `connect`, `receive` and `lost`, and out through `CoordinatorEffects`; no two calls overlap.

**Phases.** A phase is one policy on one set of members, who enter together (`PhaseEntry`). It ends for a switch, a
checkpoint, a join or a death in synchronous mode: all stop between two steps, positions that were handed out but not
processed go back to the workload, and a new phase starts on whoever is live.

**Epochs.** When no mini-batch of the epoch is left for a worker, it leaves the policy's sight as "finished" and then
stands at the epoch's end. When all do, all get the same parameters; with the next epoch they join again.
"""

import logging
from collections.abc import Callable
from typing import Any

from polyrhythm.core import LeftReason, Policy
from polyrhythm.core.placement import runtime_placement
from polyrhythm.errors import PolicyError
from polyrhythm.policies import BSP
from polyrhythm.runtime.checkpoint.manifest import JobSnapshot
from polyrhythm.runtime.checkpoint.snapshots import Snapshots
from polyrhythm.runtime.coordinator.checks import counts
from polyrhythm.runtime.coordinator.effects import CoordinatorEffects
from polyrhythm.runtime.coordinator.job import Job, Stand
from polyrhythm.runtime.coordinator.members.leaving import let_go
from polyrhythm.runtime.coordinator.members.member import Member, Ranks, without
from polyrhythm.runtime.coordinator.phase_entry import ATTEMPTS, PhaseEntry
from polyrhythm.runtime.coordinator.phases.phase_kind import PhaseKind
from polyrhythm.runtime.coordinator.rollback import Rollback
from polyrhythm.runtime.coordinator.stages import PolicyChoice, phase_of
from polyrhythm.runtime.coordinator.state_holders import StateHolders, flow_of
from polyrhythm.runtime.wire.protocol import (
    AtEnd,
    Bye,
    CollectiveFailed,
    Diverged,
    Entered,
    EpochDone,
    Halted,
    LocalStepDone,
    Pushed,
    Ready,
    Refused,
    Skipped,
    StateFlow,
    Stepped,
    SwitchTo,
    ToCoordinator,
    TookPart,
)
from polyrhythm.runtime.wire.shard_protocol import UNREAD

log = logging.getLogger(__name__)


class Coordinator:
    """Runs one job under a policy that can be switched.

    Args:
        policy: the first policy.
        workers: how many workers must be ready before the job starts.
        effects: see `CoordinatorEffects`.
        clock: seconds since the job's start.
        epochs: epochs that the job plans, for policies that count shares of the workload.

    `note` is called with where the job stands, before workers are told. `run` counts how often a phase's steps began.
    """

    def __init__(
        self,
        policy: Policy[Any],
        workers: int,
        effects: CoordinatorEffects,
        clock: Callable[[], float],
        epochs: int = 1,
    ) -> None:
        self.job, self.phase, self.snapshots = Job(workers, effects, clock), 0, Snapshots()
        self.plan(policy, epochs)
        self._stepping, self._stop_wanted, self._failed_entries, self.run = False, False, 0, 0
        self.note: Callable[[Stand], None] = lambda _: None
        self._phase_members: Ranks = ()
        self._state, self._rollback, self._mode = StateHolders(self.job), Rollback(self.job), PhaseKind()
        self.next_policy: Policy[Any] | None = None
        self.entry: PhaseEntry | None = None

    def plan(self, policy: Policy[Any], epochs: int) -> None:
        """The first policy and number of epochs; may be changed until the first worker connects."""
        self.policy, self._epochs = policy, epochs
        self.choice = PolicyChoice(policy, epochs, self.job, self._switched)

    def resume(self, snapshot: JobSnapshot) -> None:
        """Go on from a checkpoint, under the policy that is planned."""
        self.snapshots.resume(snapshot)
        self.choice.stages.resume(self.snapshots.known_of(self.choice.spec))

    @property
    def figures(self) -> dict[str, float]:
        return self._mode.figures

    def absent(self, worker: int, said: bool = False) -> None:
        if self.job.excuse(worker, said):
            self._meet()

    def receive(self, worker: int, message: ToCoordinator) -> None:
        """Follow what a worker says; a FrameError if it cannot be as things stand, before anything has changed."""
        if not counts(worker, message, self.job, self._mode, self._phase_members, self.entry is not None):
            return
        match message:
            case Pushed() | Stepped() | LocalStepDone() | Skipped() | Halted():
                self._mode.hears[type(message)](worker, message)
                if self._mode.goes_on and not self._stop_wanted:
                    return
            case TookPart():
                self._mode.merged(worker, message)
                if self.job.members[worker].at_end:  # all others may be, too
                    self._meet()
            case Entered() if message.phase == self.phase and self.entry is not None:
                self.snapshots.heard(worker, message.streams)
                self.entry.entered(worker)
                self._go_on_if_entered()
            case CollectiveFailed() if message.phase == self.phase:
                self._collective_failed(worker, message)
            case AtEnd() if message.away or message.phase == self.phase:
                self._at_end(worker, message)
            case Ready():
                self._ready(worker, message)
            case SwitchTo():
                self.choice.propose_for(worker, message.policy)
            case Diverged():
                if self._rollback.diverged(worker, message, self._stepping and message.phase == self.phase):
                    self.choice.take(BSP())
                    self._request_stop()
            case Bye():
                self.lost(worker, "removed" if message.early or self._steps(worker) else "finished")
        self._go_on_if_standing()

    def lost(self, worker: int, reason: LeftReason) -> None:
        if worker not in self.job.members:
            return
        self.job.tell_loss(worker, reason, f"in phase {self.phase} ({self.policy.spec})")
        was_present, member = worker in self.job.present, self.job.members.pop(worker)
        self._phase_members = without(worker, self._phase_members)
        self._state.forget(worker, reason)
        self._rollback.forget(worker)
        if self._stepping and was_present:
            self._lost_while_stepping(worker, member, reason)
        self.choice.lost(worker)  # which may want another phase
        self._go_on_if_standing()
        self._meet()
        self._go_on_if_standing()

    def _switched(self, policy: Policy[Any], at_once: bool) -> None:
        self.next_policy = policy
        self._request_stop() if at_once else self._request_stop_for_switch()
        if not at_once:
            self._go_on_if_standing()

    def save(self) -> None:
        """Take a checkpoint at the next moment at which everyone can be brought to a stop."""
        self.snapshots.wanted = True
        if not self.snapshots.of_script:
            self._request_stop_for_switch()
            self._go_on_if_standing()

    def alarm(self) -> None:
        self.job.alarms -= 1
        self._mode.alarm()
        self._go_on_if_standing()

    def _ready(self, worker: int, message: Ready) -> None:
        if self.snapshots.is_past(message.epoch):
            self.job.effects.send(worker, EpochDone(message.epoch, UNREAD))
        elif reason := self.job.refusal(worker, message) or self.snapshots.refusal(message):
            self.job.effects.send(worker, Refused(reason))
        elif message.epoch < self.job.epoch or (message.epoch == self.job.epoch and not self._stepping):
            self._state.pass_by(worker, message)
            self._meet()
        elif message.epoch == self.job.epoch:
            self._admit(worker, message)
        else:
            if self._steps(worker):
                self._withdraw(worker)
            self.job.members[worker].ready = message
            self._state.release()
            self.job.call_in()
            self._meet()

    def _steps(self, worker: int) -> bool:
        return self._stepping and worker in self.job.present and not self.job.members[worker].at_end

    def _at_end(self, worker: int, message: AtEnd) -> None:
        if message.away:
            if not self._stepping:
                self.job.leave_out(worker, message)
        elif message.stops:
            self.job.members[worker].leaving = "" if message.early else "asks"
            self._request_stop()
        elif message.early and self._mode.together:
            self._withdraw(worker, out=True)
        else:
            self._mode.exhausted(worker)
            self.job.members[worker].stand_at_end(message.early)
        self._meet()

    def _withdraw(self, worker: int, out: bool = False) -> None:
        """A script has left its loop early, or is out of data: the others process what is left of the epoch."""
        if not out:
            log.warning("rank %d left its loop over epoch %d early", worker, self.job.epoch)
        member, self._phase_members = self.job.members[worker], tuple(w for w in self._phase_members if w != worker)
        self.job.members[worker] = Member(member.ready if out else None, out=out)
        self._state.left_early(worker)
        self._lost_while_stepping(worker, member, "removed")
        self._go_on_if_standing()

    def _admit(self, worker: int, message: Ready) -> None:
        self.job.members[worker].ready = message
        if self._mode.admits and not self._stop_wanted:
            self._send_phase((worker,), "keep", worker, ())
            if self.entry is None:  # otherwise it starts with all others
                self._mode.join(worker)
        else:
            self._request_stop()

    def _meet(self) -> None:
        if self._stepping:
            if not (present := self.job.present):
                self._abandon_epoch()
            elif self.entry is None and all(self.job.members[w].at_end for w in present):
                self._end_epoch()
        if not self._stepping and self.job.may_begin_epoch():
            self._begin_epoch()
        elif not self._stepping and self._state.takes_waiting():
            self._stepping = True
            self._start_phase()

    def _begin_epoch(self) -> None:
        self.snapshots.lead(self.job.begin_epoch(self.snapshots.position), self.choice)
        self.snapshots.begin_epoch(self.job, self.choice.spec, self.policy.spec, self._mode, self.choice.stages.known)
        self._rollback.begin_epoch(self._phase_members)
        self._stepping = True
        due = self.next_policy or self.choice.wanted()
        same = self._mode.runs and due == self.policy and set(self.job.present) == set(self._phase_members)
        (self._start_steps if same and not self.snapshots.wanted else self._start_phase)()

    def _end_epoch(self) -> None:
        """All stand at the end; if a worker died with positions in hand, the others process those first."""
        self.job.skip_unwanted()
        if self._mode.may_end():
            goes_on = self._start_steps if self.job.workload.left else self._finish_epoch
            (self._start_phase if self._rollback.goes_back or self.job.readmit() else goes_on)()

    def _finish_epoch(self) -> None:
        self._stepping = False
        self.note("between")
        self.job.finish_epoch()

    def _abandon_epoch(self) -> None:
        """Nobody stands in the epoch any more. What the dead leave newcomers make; what scripts leave is skipped."""
        self._state.abandon(self._mode, self.policy, self.entry)
        self._mode, self.entry, self._stepping = PhaseKind(self.phase), None, self.job.readmit()
        if self._stepping or self.job.own_data or not self._state.only_newcomers:
            self.job.skip_rest()
        if self._stepping:
            self._start_phase()

    def _request_stop(self) -> None:
        self._stop_wanted = True
        if self.entry is None:  # otherwise it stops after its first steps
            self._mode.request_stop()

    def _request_stop_for_switch(self) -> None:
        """Stop in the middle of the epoch only if enough is left of it; otherwise its end will do."""
        known_by = self._mode if self.entry is None else self.job.workload
        if self._stepping and self._mode.runs and self.job.serves_another(known_by.left):
            self._request_stop()

    def _go_on_if_standing(self) -> None:
        if not self._stepping or self.entry is not None:
            return
        mode = self._mode
        if mode.watched and not self._stop_wanted and mode.runs and self.choice.due(self.policy, mode.end_samples):
            self._request_stop_for_switch()
        mode.refuse_deadlock()
        if (self._stop_wanted or mode.stops_by_itself) and self.job.present and mode.standing and not let_go(self.job):
            self._start_phase()

    def _collective_failed(self, worker: int, message: CollectiveFailed) -> None:
        if message.broken:
            self.choice.fail(PolicyError(message.detail), None if self.entry is None else self.policy)
        elif self.entry is None or not self.entry.knows(message.detail):
            log.warning("rank %d: exchange failed after step %d: %s", worker, message.completed, message.detail)
        if self.entry is not None:
            self._heed(self.entry.fail(worker, message.detail, message.broken), self.entry)
        elif self._mode.on_workers:
            self._mode.collective_failed(worker, message)
            self._request_stop()
            if message.broken:
                self.job.effects.cut(message.detail, message.completed)

    def _lost_while_stepping(self, worker: int, member: Member, reason: LeftReason) -> None:
        if self.entry is not None:
            self._heed(self.entry.lose(worker), self.entry)
        else:
            self._mode.lost(worker, member, reason)
            self._stop_wanted |= self._mode.on_workers

    def _start_phase(self) -> None:
        if equal := self._mode.started:
            self._state.after(self._mode, self.policy, self.choice.wanted, self._phase_members)
            self.snapshots.rest(self.policy.spec, self._mode.rested)
        self._rollback.end_trial(undone=self.choice.stages.goes_back)
        if self._rollback.goes_back and (keepers := self._rollback.go_back()):
            self._state.kept(keepers)
        if self._state.lost(self.job.present):  # they are newcomers; who could give it to them has left, or is gone
            self._mode = PhaseKind(self.phase)
            if not self._state.ends_if_lost():
                self.job.skip_rest()
                self._finish_epoch()
            return
        self.policy, self.next_policy = self.choice.wanted(), None
        self._rollback.begin_trial(self.phase + 1, self.choice.stages.keeps and self._state.home == "workers")
        on_servers = runtime_placement(self.policy) == "servers"
        self._open_phase(flow_of(self._state.home, on_servers), self._state.contributors(on_servers, equal))

    def _open_phase(self, state: StateFlow, contributors: Ranks) -> None:
        self.phase = self.choice.phase = self.phase + 1
        self._stop_wanted, self.run = False, 0
        cluster = self.job.cluster(self._epochs)
        try:
            kept = self.snapshots.decoded_for(self.policy.spec)
            self._mode = phase_of(self.policy, self.phase, self.job, cluster, kept)
        except PolicyError as error:
            self._mode = PhaseKind(self.phase)
            self.job.policy_failed(error)
            self._start_phase()
            return
        self.job.effects.begin_phase(self.phase, self.policy, cluster, self.snapshots.state_for(self.policy.spec))
        self._mode.serve(self.choice.stages.stage(self.job), self.job.observe is not None)
        self._phase_members = self.job.present
        source = (contributors or self._phase_members)[0]
        saves, uploads = self.snapshots.open(source), state == "upload"
        meets = self.choice.enter(self.policy) or self._mode.on_workers or bool(contributors or saves)
        awaited, uploader = self._phase_members if meets else (source,) * uploads, source if uploads else None
        self.entry = PhaseEntry(awaited, uploader, self._mode.on_workers, self._rollback.goes_back)
        self.note("entering")
        self._send_phase(self._phase_members, state, source, contributors, saves)
        self._go_on_if_entered()

    def _heed(self, first: bool, entry: PhaseEntry) -> None:
        """Somebody cannot enter the phase: let go of those who wait for it, if they have not been."""
        if first:
            self.job.effects.cut(entry.trouble)
        self._go_on_if_entered()

    def _go_on_if_entered(self) -> None:
        if (entry := self.entry) is None or not entry.answered or not self.job.present:
            return
        if not entry.succeeded:
            self._enter_again(entry)
            return
        self.entry, self._failed_entries = None, 0
        self._state.entered(self._mode.on_workers, entry.inside)
        if entry.goes_back:
            self._rollback.arrived()
        self.snapshots.enter(self.job, self.choice.spec, self.policy.spec, self.choice.stages.known)
        if self._mode.on_workers and self.job.present != self._phase_members:
            self._mode = PhaseKind(self.phase)  # somebody has come meanwhile: they enter once more, with the newcomer
            self._start_phase()
            return
        self.choice.begin(self.policy)
        self._start_steps()
        if self._stop_wanted:
            self._mode.request_stop()

    def _enter_again(self, entry: PhaseEntry) -> None:
        """Everyone stands: those who are left enter another phase."""
        self._state.not_entered(entry)
        self._mode, self.entry = PhaseKind(self.phase), None
        self._failed_entries = 0 if entry.lost or entry.refused else self._failed_entries + 1
        if self._failed_entries < ATTEMPTS:
            self._start_phase()
        else:
            self.job.effects.give_up(entry.last_words(self.job.present))

    def _send_phase(self, workers: Ranks, flow: StateFlow, source: int, contributors: Ranks, saves: int = 0) -> None:
        self._state.give(workers)
        head = self.phase, self.policy.spec, source, contributors, flow, self._epochs, self._rollback.epoch
        for worker, message in self.job.announcements(workers, *head, self._rollback.keeps(self.phase)):
            self.job.effects.send(worker, self.snapshots.complete(message, worker, saves))

    def _start_steps(self) -> None:
        if self._mode.together and self.job.lacks_samples:
            self.job.leave_out_rest()
            self._finish_epoch()
        else:
            self.run += 1
            self.note("stepping")
            self._mode.start()
