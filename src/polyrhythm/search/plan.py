"""What is searched and how: the knob, the terms of the search, one trial and its outcome."""

import math
from dataclasses import dataclass
from typing import Literal

from polyrhythm.errors import UsageError

KnobScale = Literal["linear", "log"]
Walk = Literal["bisect", "first-failure"]


@dataclass(frozen=True, slots=True)
class Knob:
    """One number in a policy's spec, between a value that keeps the accuracy and one that saves the most time.

    A **position** x runs from 1, the safe end, to 0, the fast one. On a linear scale its value is
    ``fast + x * (safe - fast)``, on a log scale ``fast * (safe / fast) ** x``.

    Args:
        template: spec with ``{}`` in the place of the number.
        safe, fast: the ends.
        scale: linear, or log for ends that are powers of each other, both above 0.
        whole: round values to whole numbers.
        baseline: spec of the runs that set the target; none: that of the safe end.

    Example:
        >>> Knob().spec(0.25), Knob("local:{}", safe=1, fast=64, scale="log", whole=True).spec(0.5)
        ('switch:bsp@0.25,asp', 'local:8')
    """

    template: str = "switch:bsp@{},asp"
    safe: float = 1.0
    fast: float = 0.0
    scale: KnobScale = "linear"
    whole: bool = False
    baseline: str = ""

    def __post_init__(self) -> None:
        if self.template.count("{}") != 1:
            raise UsageError(f"--policy must have {{}} once, where the number stands, but got {self.template!r}")
        if not (math.isfinite(self.safe) and math.isfinite(self.fast)) or self.safe == self.fast:
            raise UsageError(f"--from {self.safe:g} and --to {self.fast:g} must be two different finite numbers")
        if self.whole and (self.safe % 1 or self.fast % 1):
            raise UsageError(f"--whole needs whole ends but got --from {self.safe:g} --to {self.fast:g}")
        if self.scale == "log" and min(self.safe, self.fast) <= 0:
            raise UsageError(f"--log needs ends above 0 but got --from {self.safe:g} --to {self.fast:g}")

    def value(self, position: float) -> float:
        if self.scale == "log":
            value = self.fast * (self.safe / self.fast) ** position
        else:
            value = self.fast + position * (self.safe - self.fast)
        return float(round(value)) if self.whole else value

    def spec(self, position: float) -> str:
        return self.template.replace("{}", f"{self.value(position):.10g}")

    @property
    def target_spec(self) -> str:
        return self.baseline or self.spec(1.0)


@dataclass(frozen=True, slots=True)
class SearchPlan:
    """The terms of a search.

    Args:
        knob: what is searched.
        settings: M, how many candidates are tried.
        runs: R, runs of each candidate and, without a target, of the baseline.
        baseline_runs: runs of the baseline, if it has others; 0: R.
        beta: how far below the target, as a share of 1, an accuracy may be.
        target: A; none: the mean of R baseline runs.
        walk: bisect as Algorithm 1 of Sync-Switch does, or end at the first candidate that fails.
        two_sided: also reject a candidate that is better than the target by more than beta, as Algorithm 1 does.
        error_rate: largest probability of accepting a candidate that is worse than the target by beta or more, see
            `verdicts`; 0.5 is Algorithm 1's comparison of means.
        early: a candidate gets no more runs once its chance to pass is below this, as far as can be foreseen, nor once
            its chance to fail is, unless it is the answer; 0: never.
    """

    knob: Knob = Knob()
    settings: int = 5
    runs: int = 3
    beta: float = 0.01
    target: float | None = None
    walk: Walk = "bisect"
    two_sided: bool = False
    error_rate: float = 0.1
    early: float = 0.01
    baseline_runs: int = 0

    def __post_init__(self) -> None:
        if self.baseline_runs < 0:
            raise UsageError(f"--baseline-runs must be at least 1 but got {self.baseline_runs}; or leave it out")
        for name in ("settings", "runs"):
            if getattr(self, name) < 1:
                raise UsageError(f"--{name} must be at least 1 but got {getattr(self, name)}")
        if not 0 < self.error_rate <= 0.5:
            raise UsageError(f"--error-rate must be above 0 and at most 0.5 but got {self.error_rate:g}")
        if not 0 <= self.early < 0.5:
            raise UsageError(f"--early must be from 0 to below 0.5 but got {self.early:g}")
        if self.runs == 1 and self.error_rate < 0.5:
            raise UsageError("--runs 1 shows no spread, so no error rate can be kept; use 2 or --error-rate 0.5")
        if not 0 <= self.beta <= 1:
            raise UsageError(f"--beta must be a share of 1 but got {self.beta:g}; give 0.01 for one in a hundred")
        if self.target is not None and not 0 <= self.target <= 1:
            raise UsageError(f"--target must be a share of 1 but got {self.target:g}; give 0.91 for 91 %")

    def runs_of(self, spec: str) -> int:
        return self.baseline_runs if self.baseline_runs and spec == self.knob.target_spec else self.runs


@dataclass(frozen=True, slots=True)
class SearchTrial:
    """One training: a policy, and the number of the run, which is its seed."""

    spec: str
    run: int


@dataclass(frozen=True, slots=True)
class TrialOutcome:
    """What a trial came to.

    Args:
        trial: which.
        accuracy: at its end.
        time_s: what the training takes, from its start.
        spent_s: what was really spent on it: less where it went on from another's beginning.
        diverged: it ended before its time, with a loss that was no longer finite.
    """

    trial: SearchTrial
    accuracy: float
    time_s: float
    spent_s: float
    diverged: bool = False
