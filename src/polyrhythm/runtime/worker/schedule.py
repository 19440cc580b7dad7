"""What a rank does in synchronous mode: it runs the policy by itself on the steps that everyone makes."""

from collections.abc import Sequence
from typing import Any

from polyrhythm.core import (
    Cluster,
    Driver,
    Exchange,
    Left,
    LeftReason,
    Policy,
    Proceed,
    Report,
    Settings,
    Sync,
    Ticket,
    Wake,
)
from polyrhythm.core.epoch_plan import EpochPlan, ShareSchedule
from polyrhythm.core.policy_state import decode_state, encode_state
from polyrhythm.core.workload import SampleRange
from polyrhythm.errors import PolicyError, may_raise
from polyrhythm.runtime.wire.protocol import MeasuredStep


class LocalSchedule:
    """Follows a policy through a plan, one step of all members at a time.

    A policy placed at the clock decides from clocks and samples alone, and the plan tells both for every member; one
    that every rank runs also from what the members have measured in this step, which everyone is told. So each rank
    comes to the same decisions as the coordinator by itself.

    Args:
        policy: a policy whose placement is "clock" or "every_rank".
        cluster: as the coordinator gave it to its own copy of the policy.
        members: ranks in order; `rank` is one of them.
        rank: this one.
        state: in which the policy begins, as text; empty: as ever.
    """

    def __init__(
        self, policy: Policy[Any], cluster: Cluster, members: tuple[int, ...], rank: int, state: str = ""
    ) -> None:
        self._members = members
        self._rank, self._index = rank, members.index(rank)
        self._driver = Driver(policy, cluster, self)
        if state and not policy.traits.steady:
            self._driver.lead(policy, decode_state(state))
        self._started: dict[int, int] = {}
        self._steady = Sync(members) if policy.traits.steady else None
        self._sync: Sync | None = None
        self.exchange: Exchange = "gradients"
        self.settings = Settings()
        self.plan: EpochPlan | None = None
        self.shares: ShareSchedule | None = None
        self.step = 0

    def start(self, plan: EpochPlan, shares: tuple[int, ...] = ()) -> None:
        self.plan, self.step = plan, 0
        self.shares = ShareSchedule(plan)
        if shares:
            self.shares.change(0, shares)
        if self._steady is None:
            self._started = dict.fromkeys(self._members, 0)
            self._driver.join(self._members, 0.0)

    @property
    def done(self) -> bool:
        return self.plan is None or self.step >= self.plan.steps

    @property
    def rested(self) -> str:
        """The policy's state as text, as if all members had left; nothing if there is none to be kept."""
        driver = self._driver
        if self._steady is not None:
            return ""
        try:
            state = driver.state
            for worker, account in driver.ledger.accounts.items():
                left = Left(worker, float(account.clock), account.clock, "finished")
                state, _ = driver.policy.decide(state, left)
            return encode_state(state)
        except may_raise():  # of a policy that may be none of ours: it begins anew
            return ""

    def draw(self, step: int) -> tuple[tuple[SampleRange, ...], int, float | None]:
        """Of a step whose shares are known: this rank's mini-batch, samples of the member that has most of them, and
        what this rank's gradient counts for, None under equal shares.
        """
        assert self.shares is not None
        return self.shares.draw(step, self._index)

    def advance(self, records: Sequence[MeasuredStep] | None = None) -> Sync | None:
        """Everyone completes the step; how the members' contributions are combined after it, if they are.

        Args:
            records: what each member has measured, in their order; one that follows from clocks needs none.
        """
        assert self.plan is not None
        if self._steady is not None:
            self.step += 1
            return self._steady
        self._sync = None
        for index, worker in enumerate(self._members):
            samples = self.plan.size(self.step, index)
            self._require_running(worker)
            clock, _ = self._driver.ledger.report(worker)
            loss, norm = (records[index].loss, records[index].grad_sq_norm) if records else (None, None)
            self._driver.tell(Report(worker, clock, float(clock), samples, loss=loss, grad_sq_norm=norm))
        self.step += 1
        return self._sync

    def _require_running(self, worker: int) -> None:
        policy = self._driver.policy
        if self._driver.ledger.accounts[worker].running is None:
            raise PolicyError(
                f"policy {policy.spec} lets worker {worker} wait after {self.step} steps of the epoch; let it Proceed: "
                f"in the placement {policy.traits.placement!r} all make every step"
            )

    # -- what the policy decides (see `Effects`) -------------------------------------------------------------------

    def sync(self, decision: Sync, tickets: list[Ticket]) -> None:
        self._sync = decision

    def start_step(self, ticket: Ticket, decision: Proceed) -> bool:
        """A member starts its next step, if the plan has one."""
        assert self.plan is not None
        if self._started[ticket.worker] >= self.plan.steps:
            self._driver.finish(ticket.worker)
            return False
        self._started[ticket.worker] += 1
        if ticket.worker == self._rank:
            self.exchange = decision.exchange
            self.settings = decision.settings or self.settings
        return True

    def cancel(self, workers: tuple[int, ...], tickets: list[Ticket]) -> None:
        """Nothing is held here."""

    def stop(self, workers: tuple[int, ...]) -> None:
        raise AssertionError("every worker here waits for answers")

    def wake(self, decision: Wake) -> None:
        raise AssertionError("the driver refuses alarms of policies that the coordinator does not run")

    def settle(self, decision: Sync, tickets: list[Ticket]) -> None:
        """The closing average takes what is left, too."""
        self.sync(decision, tickets)

    def leave(self, worker: int, reason: LeftReason, tickets: list[Ticket]) -> None:
        """Nothing is held here."""
