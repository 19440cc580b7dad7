"""What auto knows, what it has saved, and what it wants next."""

import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from polyrhythm.core import Cluster, Decisions, Event, Left, Policy, Report, Sync
from polyrhythm.policies.auto.arms import REFERENCE, ArmOutlook, ShareLimits, exact_arms
from polyrhythm.policies.auto.evidence import LEAST_ROWS, UNTIMED, JobTimes
from polyrhythm.policies.auto.learning import (
    NO_POINTS,
    ArmTrial,
    harsher,
    least_points,
    rungs,
    sees_learning,
    worth_a_trial,
)
from polyrhythm.policies.auto.outlook import StepView, bsp_s
from polyrhythm.policies.auto.progress import (
    LEAST_REFERENCE,
    MOST_REFERENCE,
    MOST_TRIAL,
    UNKNOWN,
    LossPoints,
    TrialProgress,
    progress,
)
from polyrhythm.policies.balanced import Balanced

BETTER = 0.05
"""Share of the time of the arm in force that another one must save to take its place."""

LOST_ROUNDS = 3.0
"""Rounds of BSP that an arm may lose of what it had saved before it goes."""

LOST_SHARE = 0.1
"""Share of what it has saved in all that it may lose beside."""

BARRED_ROUNDS = 16
"""Rounds for which an arm that has gone is not tried again; twice as many each further time."""

PAYBACK_ROUNDS = 4.0
"""Rounds that an arm must save in what is left of the job: what two changes may cost."""

OFTEN, SELDOM = 1, 2
"""Rounds between two reviews, at first and later; half as often on more than `MANY` workers."""

MANY = 16

PATIENCE = 2.0
"""How many times its limit a trial may take while it looks better than not."""

BIAS = 0.25
"""How far real rounds of BSP may be off those that are predicted."""


class Permits(NamedTuple):
    """What the user has allowed."""

    risk: float
    drop: bool
    most: float
    allow: str = "exact"
    also: Policy[Any] | None = None


class TimeStretch(NamedTuple):
    """Where a stretch of time began: its time, the samples and the reports until then."""

    time_s: float
    samples: int
    reports: int


@dataclass(frozen=True, slots=True)
class SavedTime:
    """Times of the job and of its arm in force against BSP, seconds.

    Args:
        elapsed_s: of the job, as far as it can be compared.
        saved_s: by which it is ahead of BSP.
        arm_saved_s, arm_best_s, arm_gained_s: what the arm in force has saved, the most it has had, and all its gains.
        bias: time of real rounds of BSP over those predicted.
        arm_windows: stretches since the arm came into force; the first has what the change took, and is not the arm's.
    """

    elapsed_s: float = 0.0
    saved_s: float = 0.0
    arm_saved_s: float = 0.0
    arm_best_s: float = 0.0
    arm_gained_s: float = 0.0
    bias: float = 1.0
    arm_windows: int = 0

    def book(self, took_s: float, bsp_s: float, is_bsp: bool, credit: float = 1.0) -> "SavedTime":
        """A stretch of time, and what BSP would have taken for its samples; they count by `credit`."""
        if is_bsp:
            bias = self.bias
            if bsp_s > 0:
                bias += (min(max(took_s / bsp_s, 1 - BIAS), 1 + BIAS) - bias) / 4
            return replace(self, elapsed_s=self.elapsed_s + took_s, bias=bias)
        saved_s = bsp_s * self.bias * credit - took_s
        own_s = saved_s if self.arm_windows else 0.0
        arm_s = self.arm_saved_s + own_s
        return SavedTime(
            self.elapsed_s + took_s,
            self.saved_s + saved_s,
            arm_s,
            max(self.arm_best_s, arm_s),
            self.arm_gained_s + max(0.0, own_s),
            self.bias,
            self.arm_windows + 1,
        )

    def fresh(self) -> "SavedTime":
        """Another arm is in force."""
        return SavedTime(self.elapsed_s, self.saved_s, bias=self.bias)

    def lost(self, round_s: float) -> bool:
        """Whether the arm in force has lost what it may."""
        allowed_s = LOST_ROUNDS * round_s + LOST_SHARE * self.arm_gained_s
        return self.arm_best_s - self.arm_saved_s > allowed_s


class Barred(NamedTuple):
    """An arm that is not tried before so many reports, and how often it has been barred."""

    name: str
    until: float
    times: int


@dataclass(frozen=True, slots=True)
class Mind:
    """A pure value: all of it follows from the events and decisions that it was shown."""

    cluster: Cluster
    evidence: JobTimes
    arm: Policy[Any] = REFERENCE
    wanted: Policy[Any] = REFERENCE
    remark: str = ""
    changes: int = 0
    window: TimeStretch | None = None
    account: SavedTime = SavedTime()
    due: int = 0
    barred: tuple[Barred, ...] = ()
    losses: LossPoints = NO_POINTS
    trial: ArmTrial | None = None

    @classmethod
    def start(cls, cluster: Cluster, most: float = math.inf) -> "Mind":
        return cls(cluster, JobTimes(cluster.batch_size, most=most))

    @property
    def saved_s(self) -> float:
        return self.account.saved_s

    def resumed(self) -> "Mind":
        """With nothing under way: times until now are those of another clock."""
        return replace(self, window=None, evidence=self.evidence.resumed())

    def after(self, permits: Permits, policy: Policy[Any], event: Event, decisions: Decisions) -> "Mind":
        """With an event, and what the policy in force has decided about it."""
        alone = self.arm.bounds(self.cluster).staleness > 0 if self.arm is not REFERENCE else False
        evidence = self.evidence.after(event, alone).decided(decisions, event.time_s)
        mind = replace(self, evidence=evidence)
        if type(event) is Report and event.loss is not None:
            mind = mind._heard(event.loss)
        if isinstance(event, Left):
            mind = replace(mind, window=None)
        if policy != self.arm:
            return mind._booked(event.time_s)._entered(policy)
        if not any(isinstance(decision, Sync) for decision in decisions) and not (mind.trial and type(event) is Report):
            return mind
        if mind.window is None:
            return replace(mind, window=TimeStretch(event.time_s, evidence.processed, evidence.reports))
        return mind._booked(event.time_s)._reviewed(permits) if evidence.reports >= mind.due else mind

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
        return replace(self, arm=policy, account=self.account.fresh(), due=due, trial=trial, losses=losses)

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
        credit = 1.0 if self.trial is None or self.trial.begun_s is None else self.trial.credit
        account = self.account.book(time_s - window.time_s, bsp_took_s, self.arm == REFERENCE, credit)
        return replace(self, window=begun, account=account)

    def _reviewed(self, permits: Permits) -> "Mind":
        """What to do next, now that a window is over."""
        view, workers = self.evidence.view, len(self.evidence.workers)
        pause = OFTEN if self.evidence.reports < (UNTIMED + LEAST_ROWS + 8) * workers else SELDOM
        pause *= 2 if workers > MANY and pause == SELDOM else 1
        mind = replace(self, due=self.evidence.reports + pause * workers)
        if view is None or self.wanted != self.arm or workers < 2:
            return mind
        round_s = bsp_s(view) * self.account.bias
        if mind.trial is not None:
            return mind._judged(permits, mind.trial, view, round_s)
        if self.arm.name not in (REFERENCE.name, Balanced.name) and mind._fails(permits, round_s):
            return mind._back(round_s)
        improved = mind._improved(permits, view, round_s)
        return improved._ventured(permits, view, round_s) if improved.wanted == improved.arm else improved

    def _fails(self, permits: Permits, round_s: float) -> bool:
        account = self.account
        behind_s = max(permits.risk * account.elapsed_s, round_s)
        return account.lost(round_s) or (account.arm_saved_s < 0 and account.saved_s < -behind_s)

    def _back(self, round_s: float) -> "Mind":
        lost = -self.account.arm_saved_s / round_s if round_s else 0.0
        name = self.arm.spec
        why = f"{lost:.1f} rounds slower" if lost > 0 else "no longer faster"
        barred = self.barring(self.arm, "")
        return replace(barred, wanted=REFERENCE, remark=f"bsp: {name} is {why}", changes=self.changes + 1)

    def barring(self, policy: Policy[Any], reason: str) -> "Mind":
        """With an arm that is not tried for a while, or, for a reason that somebody else gives, never again."""
        name = policy.spec if reason else policy.name
        mind = self._barred_name(name, math.inf if reason else BARRED_ROUNDS)
        if not reason:
            return mind
        line = f"{self.arm.spec}: {policy.spec} cannot run here: {reason}"
        return replace(mind, wanted=self.arm, trial=None, remark=line)

    def _improved(self, permits: Permits, view: StepView, round_s: float) -> "Mind":
        """Want the best arm if it is surely better than what is in force."""
        arms = exact_arms(self.evidence, view, self._limits(permits), drop=permits.drop)
        shut = {bar.name for bar in self.barred if bar.until > self.evidence.reports}
        best = next((arm for arm in arms if not shut & {arm.policy.name, arm.policy.spec}), None)
        if best is None or best.policy == self.arm or not self._pays(best, round_s):
            return self
        now_s = next((arm.round_s for arm in arms if arm.policy == self.arm), bsp_s(view))
        if self.arm != REFERENCE and best.round_s > now_s * (1 - BETTER):
            return self
        late = self.evidence.late()
        gain = bsp_s(view) / best.round_s
        line = f"{best.policy.spec}: {late + '; ' if late else ''}{gain:.1f}x the throughput{best.about}"
        return replace(self, wanted=best.policy, remark=line, changes=self.changes + 1)

    def _limits(self, permits: Permits) -> ShareLimits:
        """What balanced BSP may do now."""
        account = self.account
        return ShareLimits(permits.most, permits.risk, account.elapsed_s + account.saved_s, account.saved_s)

    def _limit_s(self, permits: Permits, round_s: float) -> float:
        """Time that a trial may cost: what is saved, and the risk, of the time so far or of half of what is planned."""
        planned = self.cluster.workload_samples - self.cluster.processed_samples
        rounds = planned / (self.evidence.batch_size * max(1, len(self.evidence.workers)))
        return self.account.saved_s + permits.risk * max(self.account.elapsed_s, rounds * round_s / 2)

    def _ventured(self, permits: Permits, view: StepView, round_s: float) -> "Mind":
        """Try an arm that changes the gradients, if one is worth it, affordable, and can be judged."""
        points = self.losses.points
        if permits.allow == "exact" and permits.also is None:
            return self
        if len(points) < LEAST_REFERENCE or not sees_learning(points):
            return self
        exact = [arm.round_s for arm in exact_arms(self.evidence, view, self._limits(permits), drop=permits.drop)]
        best_s = min([bsp_s(view), *exact])
        shut = {bar.name for bar in self.barred if bar.until > self.evidence.reports}
        limit_s = self._limit_s(permits, round_s)
        arm = worth_a_trial(view, best_s, limit_s, rungs(permits.allow, len(view.steps), permits.also), shut)
        if arm is None or not self._pays(arm, round_s):
            return self
        speed = best_s / arm.round_s
        line = f"{arm.policy.spec}: on trial; {speed:.1f}x the throughput of {self.arm.spec} is expected"
        trial = ArmTrial(speed, limit_s, points)
        return replace(self, wanted=arm.policy, remark=line, changes=self.changes + 1, trial=trial)

    def _judged(self, permits: Permits, trial: ArmTrial, view: StepView, round_s: float) -> "Mind":
        """Keep an arm, or go back to BSP."""
        if trial.begun_s is None:
            return self
        behind_s = max(permits.risk * self.account.elapsed_s, round_s)
        if trial.kept:
            worse = trial.losses.rises or self.account.saved_s < -behind_s
            return self._given_up(trial, "its loss rises" if trial.losses.rises else "it is slower") if worse else self
        ripe = trial.losses.broken or len(trial.losses.points) >= least_points(self.arm)
        shown = progress(trial.reference, trial.losses) if ripe else UNKNOWN
        spent_s = self.account.elapsed_s - trial.begun_s
        made = self.evidence.processed - trial.begun
        speed = made * bsp_s(view) / (self.evidence.batch_size * len(view.steps) * spent_s) if spent_s else trial.speed
        verdict = shown.verdict(speed)
        if verdict == "better":
            return self._kept(trial, shown, speed, spent_s)
        if verdict == "worse":
            return self._given_up(trial, f"a sample brings {max(0.0, shown.likely):.2f} of what it brings under bsp")
        patience = PATIENCE if shown.likely * speed > 1 or not ripe else 1.0
        if spent_s > patience * trial.limit_s or len(trial.losses.points) >= MOST_TRIAL:
            return self._given_up(trial, f"{spent_s:.3g} s have not shown that it is better")
        return self

    def _kept(self, trial: ArmTrial, shown: TrialProgress, speed: float, spent_s: float) -> "Mind":
        passed = trial.passed(shown)
        refund_s = passed.credit * speed * spent_s * self.account.bias
        account = replace(self.account, saved_s=self.account.saved_s + refund_s)
        line = (
            f"{self.arm.spec}: kept; {speed:.1f}x the throughput of bsp, and a sample brings "
            f"{max(0.0, shown.least):.2f} to {shown.most:.2f} of what it brings there"
        )
        return replace(self, trial=passed, account=account, remark=line)

    def _given_up(self, trial: ArmTrial, why: str) -> "Mind":
        mind = self
        for name in sorted(harsher(self.arm)):
            mind = mind._barred_name(name, BARRED_ROUNDS * 4)
        line = f"bsp: {self.arm.spec} is given up, {why}; what it has made of the parameters stays"
        return replace(mind, wanted=REFERENCE, remark=line, changes=self.changes + 1)

    def _barred_name(self, name: str, rounds: float) -> "Mind":
        times = next((bar.times for bar in self.barred if bar.name == name), 0)
        until = self.evidence.reports + rounds * 2**times * len(self.evidence.workers)
        others = tuple(bar for bar in self.barred if bar.name != name)
        return replace(self, barred=(*others, Barred(name, until, times + 1)))

    def _pays(self, arm: ArmOutlook, round_s: float) -> bool:
        """Whether what is left of the job brings in more than changing there and back may cost."""
        left = self.cluster.workload_samples - self.cluster.processed_samples - self.evidence.processed
        rounds = left / (self.evidence.batch_size * len(self.evidence.workers))
        return rounds * (1 - min(1.0, arm.round_s / round_s)) >= PAYBACK_ROUNDS
