"""One policy at work: an event comes in, the policy decides, the decisions are checked, booked and carried out.

The simulator, the coordinator, every rank that decides by itself and the conformance kit run their policies through a
`Driver` and keep only their `Effects`. So what one of them refuses all refuse, with the same words: a `PolicyError`
that names the policy, the event and the worker that it is about.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar

from polyrhythm.core.ledger import Ledger, Ticket
from polyrhythm.core.misuse import located, malformed, misshapen, misshown, raised, undeclared, uneven
from polyrhythm.core.policy import Policy, Supervisor
from polyrhythm.core.types import (
    Cancel,
    Cluster,
    Decisions,
    Event,
    Joined,
    Left,
    LeftReason,
    Proceed,
    Report,
    Stop,
    Stopped,
    Sync,
    Wake,
)
from polyrhythm.errors import PolicyError, UsageError, may_raise, shown

PolicyAnswer = TypeVar("PolicyAnswer")


class Effects(Protocol):
    """Carries out what a policy has decided, once the ledger has accepted it."""

    def sync(self, decision: Sync, tickets: list[Ticket]) -> None:
        """Combine; `tickets` are the gradients taken, none for replicas."""

    def start_step(self, ticket: Ticket, decision: Proceed) -> bool:
        """Start this step; False if it is not started, and the worker waits on.

        If no mini-batch is left for the worker, tell `Driver.finish`, at once or when the worker may go.
        """

    def cancel(self, workers: tuple[int, ...], tickets: list[Ticket]) -> None:
        """These workers abandon what they have in flight and pending, which are these tickets."""

    def stop(self, workers: tuple[int, ...]) -> None:
        """Send these workers the word to stop; each then is told of by `Driver.stopped`."""

    def wake(self, decision: Wake) -> None:
        """Send an `Alarm` at its time; for a `MeasureLoss` a `LossMeasured`."""

    def settle(self, decision: Sync, tickets: list[Ticket]) -> None:
        """Apply what a worker has pending before it goes, as one update with the mean."""

    def leave(self, worker: int, reason: LeftReason, tickets: list[Ticket]) -> None:
        """The worker has no account any more, and these tickets of it are void; its `Left` follows."""


def answer_of(policy: Policy[Any], when: str, ask: Callable[..., PolicyAnswer], *given: Any) -> PolicyAnswer:
    """What a policy says when it is asked for something beside its decisions.

    Raises:
        PolicyError: if it raises.
    """
    try:
        return ask(*given)
    except UsageError as error:
        raise PolicyError(str(error)) from error
    except may_raise() as error:
        raise raised(policy, error, when) from error


def wanted_by(supervisor: Supervisor[Any], state: Any) -> Policy[Any]:
    """The policy that is to be in force.

    Raises:
        PolicyError: if it is none, or the supervisor raises.
    """
    wanted = answer_of(supervisor, "in wanted", supervisor.wanted, state)
    if not isinstance(wanted, Policy):
        raise PolicyError(f"policy {supervisor.spec}: wanted must return a policy but returned {shown(wanted)}")
    return wanted


def says(supervisor: Supervisor[Any], name: Literal["keeps", "goes_back"], state: Any) -> bool:
    """Whether a supervisor wants this as the policy that it wants comes into force.

    Raises:
        PolicyError: if it raises.
    """
    return answer_of(supervisor, f"in {name}", lambda: bool(getattr(supervisor, name)(state)))


class Driver:
    """Shows events to a policy one at a time and has its decisions carried out in order.

    A worker for which no mini-batch is left goes when all decisions about the event are carried out: those that follow
    its `Proceed` may still name it.

    Args:
        policy: what is run.
        cluster: what it is told of the cluster.
        effects: see `Effects`.
        ledger: of the job.
        record: called with every event and what was decided, before it is carried out.
        switched: called when the policy in force is another one than before; see `Policy.in_force`.
        decide: called in place of ``policy.decide``, to look over its shoulder.
        remarked: called with what the policy remarks about an event, before that is recorded; see `Policy.remark`.
        failed: called with the error when the policy fails at an event, in place of raising it.

    Attributes:
        silent: whether the policy is told nothing more, so that what happens is only booked.
        untold: reports of each worker that are booked and of which the policy is not told, as it is about to end.

    Raises:
        PolicyError: from any call, if the policy raises an exception or breaks its contract. Its ``__cause__`` is the
            exception, or a `PolicyError` with the reason alone.
    """

    def __init__(
        self,
        policy: Policy[Any],
        cluster: Cluster,
        effects: Effects,
        ledger: Ledger | None = None,
        record: Callable[[Event, Decisions], None] | None = None,
        switched: Callable[[], None] | None = None,
        decide: Callable[[Any, Event], tuple[Any, Decisions]] | None = None,
        remarked: Callable[[str], None] | None = None,
        failed: Callable[[PolicyError], None] | None = None,
    ) -> None:
        self.policy = policy
        self.ledger = Ledger() if ledger is None else ledger
        self.leaving: dict[int, None] = {}
        """Workers for which no mini-batch is left, in the order in which they go."""
        self._effects, self._record, self._switched = effects, record, switched
        self._decide = decide or policy.decide
        self._traits = policy.traits
        self._letting_go = self.silent = False
        self.untold: Counter[int] = Counter()
        self._failed = failed
        self._batch_size = cluster.batch_size
        self.state = answer_of(policy, "in init", policy.init, cluster)
        self.in_force = answer_of(policy, "in init", policy.in_force, self.state)
        # Most policies contain no other and remark nothing, and need not be asked at every event.
        self._asks_in_force = switched is not None and type(policy).in_force is not Policy.in_force
        self._remarked = remarked if type(policy).remark is not Policy.remark else None
        self._remark = ""

    @property
    def figures(self) -> dict[str, float]:
        """What the policy has to show of itself; see `Policy.figures`."""
        try:
            figures = self.policy.figures(self.state)
        except may_raise() as error:
            raise raised(self.policy, error, "in figures") from error
        if reason := misshown(figures):
            raise PolicyError(f"policy {self.policy.spec} broke its contract: {reason}")
        return {name: float(value) for name, value in figures.items()}  # numpy's numbers among them

    def lead(self, policy: Policy[Any], state: Any) -> None:
        """Go on under another policy, which is in this state."""
        self.policy, self.state, self._decide = policy, state, policy.decide
        self._traits, self.in_force = policy.traits, policy.in_force(state)
        self._asks_in_force = self._switched is not None

    def tell(self, event: Event) -> None:
        """Let the policy decide about `event`, and have what it decides carried out."""
        if self.silent:
            return
        try:
            self._follow(event)
        except PolicyError as error:
            if self._failed is None:
                raise
            self._failed(error)

    def _follow(self, event: Event) -> None:
        try:
            answer = self._decide(self.state, event)
        except UsageError as error:
            raise PolicyError(str(error)) from error
        except may_raise() as error:
            raise raised(self.policy, error, f"at {located(event)}") from error
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], tuple):
            raise self._refusal(misshapen(answer), event)
        self.state, decisions = answer
        if not self._traits.waits and isinstance(event, Report):
            self._require_answer(event, decisions)
        if self._asks_in_force:
            self._follow_switch(event)
        if self._remarked is not None:
            self._hear_remark(self._remarked, event)
        try:
            if self._record is not None:
                self._record(event, decisions)
            self._carry_out(decisions, event.time_s)
        except Exception as error:
            reason = malformed(decisions) or (str(error) if isinstance(error, PolicyError) else "")
            if not reason:
                raise
            raise self._refusal(reason, event) from PolicyError(reason)
        if self.leaving:
            self.let_go(event.time_s)

    def start_again(self, decision: Proceed, time_s: float) -> None:
        """Start steps once more that came to nothing; for the policy they are still the same."""
        self._start(decision)
        if self.leaving:
            self.let_go(time_s)

    def join(self, workers: tuple[int, ...], time_s: float) -> None:
        """These workers stand ready for their first step."""
        self.tell(Joined(workers, time_s, self.ledger.join(workers)))

    def leave(self, worker: int, time_s: float, reason: LeftReason) -> None:
        """A worker is gone; if it has finished, what it has pending is applied first."""
        self.leaving.pop(worker, None)
        if reason == "finished":
            self._settle(worker)
        clock, void = self.ledger.leave(worker)
        self._effects.leave(worker, reason, void)
        self.tell(Left(worker, time_s, clock - self.untold.pop(worker, 0), reason))

    def stopped(self, worker: int, time_s: float) -> None:
        """A worker has taken a `Stop`, and all that it has reported is told: the step in flight is void."""
        self._effects.cancel((worker,), self.ledger.cancel((worker,)))
        self.tell(Stopped(time_s, worker))

    def finish(self, worker: int) -> None:
        """No mini-batch is left for this worker: it goes once the event at hand is dealt with, or with `let_go`."""
        self.leaving[worker] = None

    def let_go(self, time_s: float) -> None:
        """Those for whom no mini-batch was left go, one by one."""
        if self._letting_go:  # what is decided about one who goes may send others
            return
        self._letting_go = True
        try:
            while self.leaving:
                self.leave(next(iter(self.leaving)), time_s, "finished")
        finally:
            self._letting_go = False

    def settle(self) -> None:
        """The policy's part is over: apply what is pending, drop what is in flight."""
        workers = tuple(self.ledger.accounts)
        for worker in workers:
            self._settle(worker)
        self._effects.cancel(workers, self.ledger.cancel(workers))

    def drop_running(self) -> None:
        """Apply what is pending of those who are under way, and cancel their steps."""
        for worker in [worker for worker, account in self.ledger.accounts.items() if account.running is not None]:
            self._settle(worker)
            self._effects.cancel((worker,), self.ledger.cancel((worker,)))

    def _settle(self, worker: int) -> None:
        tickets = self.ledger.settle(worker)
        if tickets:
            self._effects.settle(Sync((worker,) * len(tickets)), tickets)

    def _carry_out(self, decisions: Decisions, now_s: float) -> None:
        ledger, effects = self.ledger, self._effects
        for decision in decisions:
            if isinstance(decision, Sync):
                if decision.what != "gradients":
                    self._check_declared(decision)
                effects.sync(decision, ledger.sync(decision))
            elif isinstance(decision, Proceed):
                if decision.exchange not in self._traits.exchanges or decision.settings is not None:
                    self._check_declared(decision)
                if decision.shares is not None:
                    self._check_shares(decision)
                self._start(decision)
            else:
                self._carry_out_rare(decision, now_s)

    def _start(self, decision: Proceed) -> None:
        ledger, effects = self.ledger, self._effects
        for ticket in ledger.proceed(decision):
            if self.leaving:
                self.leaving.pop(ticket.worker, None)
            if not effects.start_step(ticket, decision):
                ledger.take_back(ticket)

    def _carry_out_rare(self, decision: Any, now_s: float) -> None:
        self._check_declared(decision)
        if isinstance(decision, Cancel):
            tickets = self.ledger.cancel(decision.workers)
            for worker in decision.workers:
                self.leaving.pop(worker, None)
            self._effects.cancel(decision.workers, tickets)
        elif isinstance(decision, Stop):
            # Who goes, because no mini-batch is left for it, stands already.
            running = tuple(worker for worker in decision.workers if worker not in self.leaving)
            self.ledger.require_running(running)
            self._effects.stop(running)
        elif isinstance(decision, Wake):
            if not now_s <= decision.time_s < float("inf"):
                raise PolicyError(
                    f"{type(decision).__name__} asks for an alarm at {decision.time_s:g} s, but it is {now_s:g} s; "
                    "ask for a finite time from the event's on"
                )
            self._effects.wake(decision)

    def _require_answer(self, report: Report, decisions: Decisions) -> None:
        """A worker that does not wait has begun its next step already, which needs a ticket."""
        if not any(isinstance(decision, Proceed) and report.worker in decision.workers for decision in decisions):
            reason = f"worker {report.worker} goes on without an answer, and no Proceed names it"
            raise self._refusal(reason, report)

    def _check_declared(self, decision: Any) -> None:
        reason = malformed((decision,)) or undeclared((decision,), self._traits)
        if reason:
            raise PolicyError(reason)

    def _check_shares(self, decision: Proceed) -> None:
        self._check_declared(decision)
        if reason := uneven(decision, self._batch_size):
            raise PolicyError(reason)

    def _hear_remark(self, remarked: Callable[[str], None], event: Event) -> None:
        try:
            remark = self.policy.remark(self.state)
        except may_raise() as error:
            raise raised(self.policy, error, f"in remark at {located(event)}") from error
        if remark != self._remark:
            self._remark = remark
            remarked(remark)

    def _follow_switch(self, event: Event) -> None:
        try:
            policy = self.policy.in_force(self.state)
        except may_raise() as error:
            raise raised(self.policy, error, f"in in_force at {located(event)}") from error
        if policy is not self.in_force and policy != self.in_force:
            self.in_force = policy
            assert self._switched is not None, "somebody wants to hear of switches"
            self._switched()

    def _refusal(self, reason: str, event: Event) -> PolicyError:
        error = PolicyError(f"policy {self.policy.spec} broke its contract: {reason} (at {located(event)})")
        error.__cause__ = PolicyError(reason)
        return error
