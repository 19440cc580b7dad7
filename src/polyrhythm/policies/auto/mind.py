"""What auto knows, what it has saved, and what it wants next."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from polyrhythm.core import Cluster, Decisions, Event, Joined, Left, Policy, Proceed, Report, Sync
from polyrhythm.policies.auto.arms import (
    EXACT,
    REFERENCE,
    Informed,
    ShareLimits,
    dealing_line,
    exact_arms,
)
from polyrhythm.policies.auto.evidence import LEAST_ROWS, UNTIMED, JobTimes
from polyrhythm.policies.auto.learning import (
    WORTH,
    LossFall,
    TrialLimits,
    harsher,
    least_points,
    rungs,
    worth_a_trial,
)
from polyrhythm.policies.auto.outlook import StepView, bsp_s, seconds
from polyrhythm.policies.auto.progress import LEAST_REFERENCE, MOST_REFERENCE, LossPoints, TrialProgress
from polyrhythm.policies.auto.saved_time import NOTHING_SAVED, SavedTime, TimeStretch
from polyrhythm.policies.auto.trial import NO_POINTS, ArmTrial, TrialPace, why_not
from polyrhythm.policies.balanced import Balanced

EQUAL_AGAIN = "balanced: shares are equal again, as unequal ones no longer pay"

BETTER = 0.05
"""Share of the time of the arm in force that another one must save to take its place."""

BARRED_ROUNDS = 16
"""Rounds for which an arm that has gone is not tried again; twice as many each further time."""

PAYBACK_ROUNDS = 4.0
"""Rounds that an arm must save in what is left of the job: what two changes may cost."""

OFTEN, SELDOM = 1, 2
"""Rounds between two reviews, at first and later; half as often on more than `MANY` workers."""

MANY = 16

TRUSTED_PART = 4
"""Part of the rounds that are left in which an arm that is trusted has to be judged."""

FALLS = 3.0
"""Fall of the logarithm of the loss, as fast as it falls now, in which a job has most of what there is to be won."""


class Permits(NamedTuple):
    """What the user has allowed."""

    risk: float
    drop: bool
    most: float
    allow: str = "exact"
    also: Policy[Any] | None = None


class Barred(NamedTuple):
    """An arm that is not tried before so many reports, and how often it has been barred."""

    name: str
    until: float
    times: int


@dataclass(frozen=True, slots=True)
class Mind:
    """A pure value: all of it follows from the events and decisions that it was shown.

    Args:
        dealt: whether shares were unequal when balanced BSP was last in force, as they are where its guard has found
            that they pay.
        undone: whether a trial is given up whose loss rises, until a step is made in what was before it.
    """

    cluster: Cluster
    evidence: JobTimes
    arm: Policy[Any] = REFERENCE
    wanted: Policy[Any] = REFERENCE
    remark: str = ""
    changes: int = 0
    window: TimeStretch | None = None
    account: SavedTime = NOTHING_SAVED
    due: int = 0
    barred: tuple[Barred, ...] = ()
    losses: LossPoints = NO_POINTS
    trial: ArmTrial | None = None
    uneven: bool = False
    dealt: bool = False
    undone: bool = False

    @classmethod
    def start(cls, cluster: Cluster, permits: Permits) -> "Mind":
        """Under balanced BSP, whose shares are equal until they surely need not be: that is BSP."""
        first = Informed(permits.most, risk=permits.risk)
        return cls(cluster, JobTimes(cluster.batch_size, least=cluster.least_share), first, first)

    @property
    def saved_s(self) -> float:
        return self.account.saved_s

    @property
    def keeps(self) -> bool:
        """Whether a trial is to begin, and nobody has made a step in it."""
        trial = self.trial
        if trial is None or not trial.undoable or trial.kept:
            return False
        return trial.begun_s is None or trial.begun == self.evidence.processed

    def resumed(self, permits: Permits) -> "Mind":
        """With nothing under way: times until now are those of another clock."""
        return replace(self._informed(permits), window=None, evidence=self.evidence.resumed())

    def _informed(self, permits: Permits) -> "Mind":
        """Balanced BSP that begins anew knows what is known."""
        return replace(self, wanted=self._exact(permits)) if self.wanted.name == Balanced.name else self

    def after(self, permits: Permits, policy: Policy[Any], event: Event, decisions: Decisions) -> "Mind":
        """With an event, and what the policy in force has decided about it."""
        alone = self.arm.name not in EXACT and self.arm.bounds(self.cluster).staleness > 0
        evidence = self.evidence.after(event, alone).decided(decisions, event.time_s)
        uneven = self.uneven or (type(event) is Report and event.samples > evidence.batch_size)
        undone = self.undone and (self.trial is not None or type(event) is not Report)
        mind = replace(self, evidence=evidence, uneven=uneven, undone=undone)
        if policy == self.arm and policy.name == Balanced.name:
            mind = mind._dealing(permits, decisions)
        if type(event) is Report and event.loss is not None:
            mind = mind._heard(event.loss)
        if isinstance(event, Left | Joined):
            mind = mind._informed(permits)
            mind = replace(mind, window=None if isinstance(event, Left) else mind.window)
        if policy != self.arm:
            return mind._booked(event.time_s)._entered(policy)
        if not any(isinstance(decision, Sync) for decision in decisions) and not (mind.trial and type(event) is Report):
            return mind
        if mind.window is None:
            return replace(mind, window=TimeStretch(event.time_s, evidence.processed, evidence.reports))
        return mind._booked(event.time_s)._reviewed(permits) if evidence.reports >= mind.due else mind

    def _dealing(self, permits: Permits, decisions: Decisions) -> "Mind":
        """Say so when shares become unequal, or equal again."""
        for decision in decisions:
            if isinstance(decision, Proceed) and len(decision.workers) == len(self.evidence.workers):
                dealt, view = decision.shares is not None, self.evidence.view
                if dealt == self.dealt or view is None:
                    return self
                line = dealing_line(self.evidence, view, permits.most) if dealt else EQUAL_AGAIN
                return replace(self, dealt=dealt, remark=line)
        return self

    def _heard(self, loss: float) -> "Mind":
        size, samples = max(1, len(self.evidence.workers)), self.evidence.processed
        if self.trial is not None and self.trial.begun_s is not None:
            return replace(self, trial=self.trial.add(loss, samples, size))
        return replace(self, losses=self.losses.add(loss, samples, size, MOST_REFERENCE))

    def _entered(self, policy: Policy[Any]) -> "Mind":
        due = self.evidence.reports + 2 * len(self.evidence.workers)
        trial = self.trial
        if trial is not None and trial.begun_s is None:
            trial = replace(trial, begun_s=self.account.elapsed_s, begun=self.evidence.processed)
        elif trial is not None:
            trial = None
        losses = self.losses if trial is None and self.trial is None else LossPoints()
        mind = replace(self, arm=policy, account=self.account.fresh(), due=due, trial=trial, losses=losses)
        return mind._as_before(self.trial) if self.undone and self.trial is not None else mind

    def _as_before(self, trial: ArmTrial) -> "Mind":
        """The samples of a trial that is undone count for nothing, and the losses before it hold."""
        evidence = replace(self.evidence, processed=trial.begun)
        window = None if self.window is None else self.window._replace(samples=trial.begun)
        return replace(self, evidence=evidence, window=window, losses=LossPoints(trial.reference))

    def _booked(self, time_s: float) -> "Mind":
        """With the account of the window, and a new one."""
        evidence, window, view = self.evidence, self.window, self.evidence.view
        begun = TimeStretch(time_s, evidence.processed, evidence.reports)
        if window is None or view is None:
            return replace(self, window=begun)
        rounds = max(1, round((evidence.reports - window.reports) / len(evidence.workers)))
        latest = view._replace(steps=[steps[-rounds:] for steps in view.steps])
        per_sample_s = bsp_s(latest) / (len(evidence.workers) * evidence.batch_size)
        bsp_took_s = per_sample_s * (evidence.processed - window.samples)
        trial, credit = self.trial, 1.0
        if trial is not None and trial.begun_s is not None:
            trial, credit = replace(trial, bsp_s=trial.bsp_s + bsp_took_s), trial.credit
        is_bsp = self.arm.name in EXACT and not self.uneven
        account = self.account.book(time_s - window.time_s, bsp_took_s, is_bsp, credit)
        return replace(self, window=begun, account=account, uneven=False, trial=trial)

    def _reviewed(self, permits: Permits) -> "Mind":
        """What to do next, now that a window is over."""
        view, workers = self.evidence.view, len(self.evidence.workers)
        pause = OFTEN if self.evidence.reports < (UNTIMED + LEAST_ROWS + 8) * workers else SELDOM
        pause *= 2 if workers > MANY and pause == SELDOM else 1
        mind = replace(self, due=self.evidence.reports + pause * workers)
        if view is None or self.wanted != self.arm:
            return mind
        if workers < 2:
            return mind._given_up(permits, "one worker is left") if mind.trial else mind
        round_s = bsp_s(view) * self.account.bias
        if mind.trial is not None:
            return mind._judged(permits, mind.trial, view, round_s)
        if self.arm.name not in EXACT and mind._fails(permits, round_s):
            return mind._back(permits, round_s)
        improved = mind._improved(permits, view, round_s)
        return improved._ventured(permits, view, round_s) if improved.wanted == improved.arm else improved

    def _fails(self, permits: Permits, round_s: float) -> bool:
        account = self.account
        behind_s = max(permits.risk * account.elapsed_s, round_s)
        return account.lost(round_s) or (account.arm_saved_s < 0 and account.saved_s < -behind_s)

    def _back(self, permits: Permits, round_s: float) -> "Mind":
        lost = -self.account.arm_saved_s / round_s if round_s else 0.0
        name = self.arm.spec
        why = f"{lost:.1f} rounds slower" if lost > 0 else "no longer faster"
        barred, exact = self.barring(self.arm, ""), self._exact(permits)
        return replace(barred, wanted=exact, remark=f"{exact.spec}: {name} is {why}", changes=self.changes + 1)

    def _exact(self, permits: Permits) -> Policy[Any]:
        """What is gone back to: balanced BSP, which knows what is known, where the job can run it."""
        shut = any(bar.name == Balanced(permits.most).spec and bar.until == math.inf for bar in self.barred)
        return REFERENCE if shut else Informed.by(self.evidence, self._limits(permits))

    def barring(self, policy: Policy[Any], reason: str) -> "Mind":
        """With an arm that is not tried for a while, or, for a reason that somebody else gives, never again."""
        name = policy.spec if reason else policy.name
        mind = self._barred_name(name, math.inf if reason else BARRED_ROUNDS)
        if not reason:
            return mind
        goes_on = REFERENCE if policy == self.arm else self.arm
        line = f"{goes_on.spec}: {policy.spec} cannot run here: {reason}"
        return replace(mind, wanted=goes_on, trial=None, remark=line)

    def _improved(self, permits: Permits, view: StepView, round_s: float) -> "Mind":
        """Want the best arm if it is surely better than what is in force."""
        arms = exact_arms(self.evidence, view, self._limits(permits), drop=permits.drop)
        shut = {bar.name for bar in self.barred if bar.until > self.evidence.reports}
        best = next((arm for arm in arms if not shut & {arm.policy.name, arm.policy.spec}), None)
        if best is None or best.policy == self.arm or not self._pays(best.round_s, round_s):
            return self
        now_s = next((arm.round_s for arm in arms if arm.policy == self.arm), bsp_s(view))
        if best.round_s > now_s * (1 - BETTER):
            return self
        late = self.evidence.late()
        gain = bsp_s(view) / best.round_s
        line = f"{best.policy.spec}: {late + '; ' if late else ''}{gain:.1f}x the throughput{best.about}"
        return replace(self, wanted=best.policy, remark=line, changes=self.changes + 1)

    def _limits(self, permits: Permits) -> ShareLimits:
        """What balanced BSP may do now."""
        account = self.account
        bsp_s = account.elapsed_s + account.saved_s
        return ShareLimits(permits.most, permits.risk, bsp_s, account.ahead_s, self.dealt)

    def _limits_of_trials(self, permits: Permits, round_s: float, fall: float) -> TrialLimits:
        """What is saved, and the risk, of the time so far or of half of what is planned, or of that in which the
        logarithm of the loss falls by `FALLS` if that is less: then little is left to be won. What is trusted has to
        show itself in a part of what is planned.
        """
        rounds = self._rounds_left
        ahead_s = min(rounds / 2, FALLS / fall) * round_s
        paid_s = self.account.saved_s + permits.risk * max(self.account.elapsed_s, ahead_s)
        return TrialLimits(paid_s, rounds / TRUSTED_PART if permits.risk else 0.0)

    @property
    def _rounds_left(self) -> float:
        left = self.cluster.workload_samples - self.cluster.processed_samples - self.evidence.processed
        return left / (self.evidence.batch_size * max(1, len(self.evidence.workers)))

    def _ventured(self, permits: Permits, view: StepView, round_s: float) -> "Mind":
        """Try an arm that changes the gradients, if one is worth it, affordable, and can be judged."""
        points = self.losses.points
        if permits.allow == "exact" and permits.also is None:
            return self
        if len(points) < LEAST_REFERENCE or not (fall := LossFall.of(points)).shows:
            return self
        exact = [arm.round_s for arm in exact_arms(self.evidence, view, self._limits(permits), drop=permits.drop)]
        best_s = min([bsp_s(view), *exact])
        shut = {bar.name for bar in self.barred if bar.until > self.evidence.reports}
        limits = self._limits_of_trials(permits, round_s, fall.likely)
        choices = (rung for rung in rungs(permits.allow, len(view.steps), permits.also) if rung.policy.spec not in shut)
        found = worth_a_trial(view, best_s, limits, points, choices)
        if found is None or not self._pays(found.pace_s, round_s):
            return self
        policy, undoable = found.policy, self.arm.name in EXACT
        speed, over_bsp, ripe = bsp_s(view) / found.round_s, bsp_s(view) / best_s, least_points(policy)
        line = f"{policy.spec}: on trial; {speed:.1f}x the throughput of bsp is expected"
        trial = ArmTrial(speed, found.likely, found.least, over_bsp, limits.paid_s, points, ripe, undoable=undoable)
        return replace(self, wanted=policy, remark=line, changes=self.changes + 1, trial=trial)

    def _judged(self, permits: Permits, trial: ArmTrial, view: StepView, round_s: float) -> "Mind":
        """Keep an arm, or go back to BSP."""
        if trial.begun_s is None:
            return self
        if trial.kept:
            return self._watched(permits, trial, view, round_s)
        spent_s, known_s = self.account.elapsed_s - trial.begun_s, seconds(self.arm, view)
        # Of steps that are under way about half is made.
        speed = (trial.bsp_s + bsp_s(view) / 2) / spent_s if spent_s else trial.speed
        rounds = (self.evidence.processed - trial.begun) / (self.evidence.batch_size * len(view.steps))
        pace = TrialPace(speed, bsp_s(view) / known_s if known_s else None, rounds, spent_s)
        shown = trial.shown
        outcome = trial.outcome(shown, pace)
        if outcome == "open":
            return self
        if outcome == "kept":
            return self._kept(trial, shown, pace)
        if outcome == "rises":
            return self._given_up(permits, "its loss rises", every=True)
        credited = replace(self, account=self.account.credited(shown.least * speed * spent_s))
        return credited._given_up(permits, why_not(outcome, shown, pace, trial.speed))

    def _watched(self, permits: Permits, trial: ArmTrial, view: StepView, round_s: float) -> "Mind":
        """Whether a kept arm goes."""
        if trial.losses.rises:
            return self._given_up(permits, "its loss rises")
        if trial.losses.stands:
            return self._given_up(permits, "its loss does not fall any more")
        if self.account.saved_s < -max(permits.risk * self.account.elapsed_s, round_s):
            return self._given_up(permits, "it is slower")
        better = self._outdone(permits, trial, view)
        return self._given_up(permits, f"{better} is faster now") if better else self

    def _outdone(self, permits: Permits, trial: ArmTrial, view: StepView) -> str:
        """The exact arm that is clearly faster by now than a kept one, as when a worker has become slow."""
        limits = self._limits(permits)._replace(pays=True)
        best = next(iter(exact_arms(self.evidence, view, limits, drop=permits.drop)), None)
        arm_s = seconds(self.arm, view)
        if best is None or arm_s is None or best.round_s * WORTH > arm_s / max(trial.credit, trial.likely):
            return ""
        return best.policy.spec

    def _kept(self, trial: ArmTrial, shown: TrialProgress, pace: TrialPace) -> "Mind":
        passed = trial.passed(shown)
        account = self.account.credited(passed.credit * pace.speed * pace.spent_s)
        line = (
            f"{self.arm.spec}: kept; {pace.speed:.1f}x the throughput of bsp, and a sample brings "
            f"{max(0.0, shown.least):.2f} to {shown.most:.2f} of what it brings there"
        )
        return replace(self, trial=passed, account=account, remark=line)

    def _given_up(self, permits: Permits, why: str, every: bool = False) -> "Mind":
        """Go back; where a loss has risen the rate bears no such arm: all are barred, and the trial is undone."""
        mind = replace(self, account=self.account.given_up())
        exact = mind._exact(permits)
        all_arms = {rung.policy.spec for rung in rungs(permits.allow, len(self.evidence.workers), permits.also)}
        for name in sorted(harsher(self.arm) | (all_arms if every else set())):
            mind = mind._barred_name(name, BARRED_ROUNDS * 4)
        undone = every and self.trial is not None and self.trial.undoable
        after = "the job goes back to where it began" if undone else "what it has made of the parameters stays"
        line = f"{exact.spec}: {self.arm.spec} is given up, {why}; {after}"
        return replace(mind, wanted=exact, remark=line, changes=self.changes + 1, undone=undone)

    def _barred_name(self, name: str, rounds: float) -> "Mind":
        times = next((bar.times for bar in self.barred if bar.name == name), 0)
        until = self.evidence.reports + rounds * 2**times * len(self.evidence.workers)
        others = tuple(bar for bar in self.barred if bar.name != name)
        return replace(self, barred=(*others, Barred(name, until, times + 1)))

    def _pays(self, arm_s: float, round_s: float) -> bool:
        """Whether what is left of the job brings in more than changing there and back may cost."""
        return self._rounds_left * (1 - min(1.0, arm_s / round_s)) >= PAYBACK_ROUNDS
