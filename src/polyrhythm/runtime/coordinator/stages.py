"""The stages of a job: each policy of a sequence runs in a phase of its own, and so in its own placement.

A synchronous phase stops by itself after the step that serves its share; on the servers no further step starts once
the share is applied. Both happen in the middle of an epoch.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from polyrhythm.core import Cluster, Decisions, Event, Policy, Stage, Supervisor, all_stages
from polyrhythm.core.driver import answer_of, says, wanted_by
from polyrhythm.core.placement import runtime_placement
from polyrhythm.errors import PolicyError, UsageError
from polyrhythm.policies import is_built_in
from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.coordinator.members.proposal import (
    Proposal,
    Proposals,
    SwitchAnswer,
    may_object,
    nobody,
    read_policy,
)
from polyrhythm.runtime.coordinator.phases.local_steps import LocalStepPhase
from polyrhythm.runtime.coordinator.phases.measured import MeasuredPhase
from polyrhythm.runtime.coordinator.phases.parameter_server import ParameterServerPhase
from polyrhythm.runtime.coordinator.phases.phase_kind import PhaseKind
from polyrhythm.runtime.coordinator.phases.shares import check_lengths, check_own_data, check_shares
from polyrhythm.runtime.coordinator.phases.synchronous import SynchronousPhase
from polyrhythm.runtime.wire.protocol import Confirmed
from polyrhythm.runtime.wire.shard_protocol import NOT_APART, NOT_ON_SERVERS
from polyrhythm.runtime.wire.tls.cover import check_cover

log = logging.getLogger(__name__)

NOTICES = 5
"""Lines about policies that are kept for those who ask how the job is."""

UNABLE = {
    NOT_ON_SERVERS: ("runs on parameter servers", {"servers"}),
    NOT_APART: ("lets workers make steps of their own", {"servers", "coordinator"}),
}
"""By the term with which workers say why they cannot: what a policy does, and which placements do it."""

LOST = "steps that %s abandons lose their mini-batches: the script reads its data itself; nobody hands them out again"


class Stages:
    """Which policy is due.

    Args:
        policy: what the job was asked to run, a sequence or not.
        epochs: epochs that the job plans; shares are of all their samples.

    Raises:
        PolicyError: if a policy of it has no placement on real workers.
    """

    def __init__(self, policy: Policy[Any], epochs: int) -> None:
        runtime_placement(policy)
        self.policy = policy
        self._epochs = epochs
        self.known: Any = None
        """State of a supervisor, once the job has begun."""
        self.barred = set[str]()
        """Policies that it was told of, once: wanted again all the same, they are refused where the script does it."""
        self._remark = ""

    def resume(self, known: Any) -> None:
        """Go on with what such a policy knew."""
        if isinstance(self.policy, Supervisor) and known is not None:
            self.known = answer_of(self.policy, "in resumed", self.policy.resumed, known)
            self._remark = answer_of(self.policy, "in remark", self.policy.remark, self.known)

    def try_out(self, job: Job) -> None:
        """Let the policy that would run now begin, for nothing.

        Raises:
            PolicyError: if it cannot.
        """
        check_lengths(self.policy, job)
        if job.epoch < 0 or not job.is_known:
            check_cover(self.policy)
            return
        self._check_placements(job)
        policy = self.stage(job).policy
        check_cover(policy)
        check_shares(policy, job)
        check_own_data(policy, job)
        answer_of(policy, "in init", policy.init, job.cluster(self._epochs))

    def _check_placements(self, job: Job) -> None:
        """No part of the policy may run where the workers have said that they cannot."""
        cluster = job.cluster(self._epochs)
        stages = answer_of(self.policy, "in stages", all_stages, self.policy, cluster) or (self.stage(job),)
        placements = {runtime_placement(stage.policy) for stage in stages}
        terms = [member.ready.terms for member in job.members.values() if member.ready is not None]
        for term, (what, there) in UNABLE.items():
            told = next(filter(None, (each.get(term) for each in terms)), None)
            if told and not placements.isdisjoint(there):
                raise PolicyError(f"policy {self.policy.spec} {what}, but {told}")

    def stage(self, job: Job) -> Stage:
        cluster, policy = replace(job.cluster(self._epochs), processed_samples=job.done_samples), self.policy
        if isinstance(policy, Supervisor):
            if self.known is None:
                self.known = begun(policy, cluster, job)
            policy = wanted_by(policy, self.known)
        stages = answer_of(policy, "in stages", all_stages, policy, cluster)
        return next((s for s in stages if s.end_samples > cluster.processed_samples), Stage(policy))

    def wants(self, job: Job, policy: Policy[Any]) -> bool:
        """Whether a supervisor wants another policy in force than this one."""
        return self.known is not None and bool(job.present) and self.stage(job).policy != policy

    @property
    def keeps(self) -> bool:
        """Whether a supervisor wants the state to be kept that the next phase begins in."""
        return self._supervisor_says("keeps")

    @property
    def goes_back(self) -> bool:
        """Whether a supervisor wants the next phase to begin in the state that was kept last."""
        return self._supervisor_says("goes_back")

    def _supervisor_says(self, name: Literal["keeps", "goes_back"]) -> bool:
        policy, known = self.policy, self.known
        return isinstance(policy, Supervisor) and known is not None and says(policy, name, known)

    def observe(self, job: Job, policy: Policy[Any], event: Event, decisions: Decisions) -> str:
        """Show a supervisor what the policy in force was told and has decided; what it remarks that is new.

        A policy that it wants and that cannot run here is refused at once.
        """
        supervisor = self.policy
        if not isinstance(supervisor, Supervisor) or self.known is None:
            return ""
        before = wanted_by(supervisor, self.known)
        self.known = answer_of(supervisor, "in observe", supervisor.observe, self.known, policy, event, decisions)
        if (wanted := wanted_by(supervisor, self.known)) != before:
            try:
                runtime_placement(wanted)
                self.try_out(job)
            except PolicyError as error:
                self.bar(wanted, str(error))
        remark, self._remark = self._remark, answer_of(supervisor, "in remark", supervisor.remark, self.known)
        return self._remark if self._remark != remark else ""

    def bar(self, policy: Policy[Any], reason: str) -> bool:
        """Tell a supervisor that a policy cannot run here; whether there is one that wants another then."""
        supervisor, known = self.policy, self.known
        if not isinstance(supervisor, Supervisor) or known is None or wanted_by(supervisor, known) != policy:
            return False
        self.known = answer_of(supervisor, "in bar", supervisor.bar, known, policy, reason)
        again = policy.spec in self.barred
        self.barred.add(policy.spec)
        return not again and wanted_by(supervisor, self.known) != policy


def begun(supervisor: Supervisor[Any], cluster: Cluster, job: Job) -> Any:
    """What a supervisor knows at first, of the policy with which it would begin too, if this job cannot run that."""
    known = answer_of(supervisor, "in init", supervisor.init, cluster)
    wanted = wanted_by(supervisor, known)
    try:
        check_shares(wanted, job)
        check_own_data(wanted, job)
    except PolicyError as error:
        return answer_of(supervisor, "in bar", supervisor.bar, known, wanted, str(error))
    return known


def abandons(policy: Policy[Any]) -> bool:
    """Whether it ends steps in flight: it cancels them, or stops workers that do not wait for its answers."""
    return policy.traits.cancels or not policy.traits.waits


class PolicyChoice:
    """Which policy the job runs, which it may switch to, and which it goes back to.

    A switch has two steps. All workers are asked whether they have the policy, unless it is built in, and whether what
    an unmodified script has done so far stands against it. One refusal is enough, and the job goes on as it was. A
    policy that fails when it is in force, or that a worker refuses on the way into it, gives way to the one before it.
    Of several that are asked about at the same time the latest comes that no worker refuses.

    Args:
        policy: the first one.
        epochs: as of `Stages`.
        job: that runs them.
        changed: called with a policy that is to run, and whether it must be as soon as all stand.

    Attributes:
        phase: the number of the phase under way.
        notices: the last lines about policies that were refused or taken out of force.
        began: what was chosen last of all that has begun and not failed.
        before: what goes on if a worker refuses what was chosen after it, or if that fails.
    """

    def __init__(
        self, policy: Policy[Any], epochs: int, job: Job, changed: Callable[[Policy[Any], bool], None]
    ) -> None:
        self.stages = self._entered = Stages(policy, epochs)
        self.notices: deque[str] = deque(maxlen=NOTICES)
        self._epochs, self._job, self._changed = epochs, job, changed
        self._proposals = Proposals()
        self._told = set[str]()
        """Policies of which it was said what their abandoned steps cost."""
        self.phase, self._failed_in = 0, 0
        self.began: Policy[Any] | None = None
        self.before: Policy[Any] | None = None
        job.policy_failed = self.fail
        self._listen()

    @property
    def spec(self) -> str:
        """Of the policy that was chosen, perhaps a sequence."""
        return self.stages.policy.spec

    def enter(self, policy: Policy[Any]) -> bool:
        """A phase opens under this policy; whether a worker may refuse it, since another can come in its place.

        What a script has done is known best to its worker, and best of all when it stands.
        """
        self._entered = self.stages
        wanted = isinstance(self.stages.policy, Supervisor) and policy.spec not in self.stages.barred
        gives_way = wanted or self.before not in (None, self.stages.policy)
        self._job.may_refuse = gives_way and may_object(self._job.members.values())
        return self._job.may_refuse

    def chooser(self, policy: Policy[Any]) -> str:
        """Spec of the policy that has put this one in force; empty if it is the same."""
        by = self._entered.policy
        return by.spec if by.spec != policy.spec else ""

    def take(self, policy: Policy[Any]) -> None:
        """Run this policy from the next phase on."""
        self.stages = Stages(policy, self._epochs)
        self._listen()

    def _listen(self) -> None:
        """What members are asked for, whichever policy is in force."""
        policy = self.stages.policy
        self._job.hears, self._job.weighs = "loss" in policy.traits.needs, policy.traits.shares
        self._job.observe = self.observe if isinstance(policy, Supervisor) else None

    def wanted(self) -> Policy[Any]:
        return self.stages.stage(self._job).policy

    def due(self, policy: Policy[Any], end_samples: float) -> bool:
        """Whether another policy is due than this one, which is in force until so many samples.

        It is asked at each message, and who is present is counted only if it is.
        """
        due = self._job.done_samples >= end_samples or self.stages.wants(self._job, policy)
        return due and bool(self._job.present)

    def observe(self, policy: Policy[Any], event: Event, decisions: Decisions) -> None:
        """The policy in force has been told something; one that watches it may want another."""
        if remark := self.stages.observe(self._job, policy, event, decisions):
            self._job.effects.remark(remark)

    def begin(self, policy: Policy[Any]) -> None:
        """The steps of a phase begin under this policy, perhaps a part of the one that was chosen."""
        self._job.may_refuse = False
        if policy == self.wanted():
            self.began = self.stages.policy
        ending = [each.spec for each in (self.stages.policy, policy) if abandons(each)]
        if ending and self._job.own_data and ending[0] not in self._told:
            self._told.add(ending[0])
            log.warning(LOST, ending[0])

    def propose(self, policy: Policy[Any], tell: SwitchAnswer) -> None:
        """Switch to this policy once all workers have said that they have it; `tell` hears why it is refused."""
        if self._proposals.also(policy, tell):
            return
        try:
            Stages(policy, self._epochs).try_out(self._job)
        except PolicyError as error:  # one that was asked for before may still come
            tell(self._notice(f"the switch to {policy.spec} is refused: {error}"))
            return
        asks = policy != self.stages.policy and (not is_built_in(policy) or may_object(self._job.members.values()))
        proposal = self._proposals.add(policy, self._job.members if asks else (), tell)
        if asks:
            self._job.effects.propose(proposal.number, policy.spec)
        self._adopt_answered()

    def propose_for(self, worker: int, spec: str) -> None:
        """The script of a worker wants this policy."""
        try:
            policy = read_policy(spec, files=self._job.runs_policy_files)
        except UsageError as error:
            self._notice(f"the switch to {spec} that rank {worker} has asked for is refused: {error}")
        else:
            self.propose(policy, nobody)

    def confirmed(self, worker: int, message: Confirmed) -> None:
        proposal = self._proposals.numbered(message.number)
        if proposal is not None and message.refusal:
            self._proposals.drop(proposal)
            self._refuse(proposal, f"rank {worker}: {message.refusal}")
        elif proposal is not None:
            proposal.answer(worker)
            self._adopt_answered()

    def lost(self, worker: int) -> None:
        """Nobody waits for this worker's answers any more."""
        for proposal in self._proposals:
            proposal.answer(worker)
        self._adopt_answered()

    def ask_again(self, worker: int) -> None:
        """This worker can be asked only now; others may hear the question twice."""
        for proposal in self._proposals:
            if proposal.awaits(worker):
                self._job.effects.propose(proposal.number, proposal.policy.spec)

    def fail(self, error: PolicyError, entered: Policy[Any] | None = None) -> None:
        """The policy in force has failed; the one before it goes on. Several may find it out in one phase.

        Args:
            error: what is wrong with it.
            entered: the policy of a phase that a worker could not enter; a policy that has put it in force puts
                another one in its place.

        Raises:
            PolicyError: if there is none.
        """
        if self._failed_in == self.phase:
            return
        newer = self._entered is not self.stages  # chosen while this one was on its way
        if entered is not None and (newer or self.stages.bar(entered, str(error))):
            self._failed_in = self.phase
            self._notice(f"{error}; {self.spec} goes on without {entered.spec}")
            self._changed(self.wanted(), True)
            return
        before, failed = self.before, self.stages.policy
        if before is None or before == failed:
            raise error
        self.began, self.before, self._failed_in = before, None, self.phase
        ends = f"{failed.spec} is out of force" if entered is None else f"{entered.spec} does not begin"
        self._notice(f"{error}; {ends}, and {before.spec} goes on")
        self.take(before)
        self._changed(before, True)
        self._job.chosen()

    def _adopt_answered(self) -> None:
        while taken := self._proposals.take_answered():
            *earlier, proposal = taken
            for each in earlier:
                self._refuse(each, f"{proposal.policy.spec} was asked for before all had answered")
            if proposal.policy != self.stages.policy:
                self.before = self.began
                self.take(proposal.policy)
                self._changed(proposal.policy, False)
                self._job.chosen()
            proposal.end()

    def _refuse(self, proposal: Proposal, reason: str) -> None:
        proposal.end(self._notice(f"the switch to {proposal.policy.spec} is refused: {reason}"))

    def _notice(self, line: str) -> str:
        log.warning("%s", line)
        self.notices.append(line)
        return line


def kind_of(policy: Policy[Any]) -> type[ParameterServerPhase | SynchronousPhase]:
    """The kind of phase that runs this policy."""
    placement = runtime_placement(policy)
    if placement == "servers":
        return ParameterServerPhase
    if placement == "coordinator":
        return LocalStepPhase
    return MeasuredPhase if policy.traits.placement == "every_rank" else SynchronousPhase


def phase_of(policy: Policy[Any], number: int, job: Job, cluster: Cluster, kept: Any = None) -> PhaseKind:
    """A phase under this policy, which begins in the state that was kept if there is one.

    Raises:
        PolicyError: if the policy cannot begin.
    """
    phase = kind_of(policy)(number, job, policy, cluster)
    if kept is not None:
        phase.lead(kept)
    return phase
