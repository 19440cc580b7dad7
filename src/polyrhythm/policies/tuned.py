"""Tuned: another policy with a learning rate, momentum and batch size of its own."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from polyrhythm.core import Bounds, Cluster, Decisions, Event, Left, Policy, Proceed, Report, Settings, Stage, Traits
from polyrhythm.core.worker_map import WorkerMap
from polyrhythm.errors import SpecError
from polyrhythm.policies._lib.checks import require_at_least
from polyrhythm.policies.asp import ASP

MOMENTA = ("same", "zero", "1/n", "2^i/n", "i/n")


@dataclass(frozen=True, slots=True)
class TunedState:
    """State of the policy within, samples of steps completed under it, the epoch whose Settings each worker was `told`,
    and what the policy within has `asked` for itself.
    """

    cluster: Cluster
    inner: Any
    samples: int = 0
    told: WorkerMap[int] = field(default_factory=WorkerMap)
    asked: Settings = field(default_factory=Settings)


@dataclass(frozen=True)
class Tuned(Policy[TunedState]):
    """Another policy, under which workers use a learning rate, momentum and batch size of their own.

    With n workers and i epochs of the data set since this policy started, the momentum is the configured one
    (``same``), 0 (``zero``), ``1/n``, ``2^i/n``, ``i/n``, or the number that is given. The two ramps end for good where
    they reach `full`; from there on the configured momentum holds.

    Args:
        policy: the policy; what it sets itself comes first.
        lr: factor on the learning rate in force.
        momentum: see above.
        batch: samples of a mini-batch; 0 is as configured.
        full: momentum at which a ramp ends.

    Source: Sync-Switch (Li et al. 2021), section IV-C and Fig. 8. In synchronous mode, mini-batches are as configured.

    Example:
        >>> from polyrhythm.core import Cluster, Joined
        >>> from polyrhythm.policies import parse_policy
        >>> policy = parse_policy("tuned:asp,momentum=1/n")
        >>> _, (go,) = policy.decide(policy.init(Cluster(workers=4)), Joined((0, 1, 2, 3), time_s=0.0))
        >>> go.settings.momentum
        0.25
    """

    policy: Policy[Any] = ASP()  # noqa: RUF009 (a frozen value)
    lr: float = 1.0
    momentum: str = "same"
    batch: int = 0
    full: float = 0.9

    name: ClassVar[str] = "tuned"
    summary: ClassVar[str] = "another policy with a rate, momentum and batch size of its own"

    def __post_init__(self) -> None:
        if not 0 < self.lr < float("inf"):
            raise SpecError(f"lr must be a positive factor but got {self.lr}")
        require_at_least(0, batch=self.batch)
        if not 0 <= self.full < 1:
            raise SpecError(f"full must be in [0, 1) but got {self.full}")
        if self.momentum not in MOMENTA and not is_momentum(self.momentum):
            raise SpecError(
                f"momentum must be a number in [0, 1) or one of {', '.join(MOMENTA)} but got {self.momentum!r}"
            )

    @property
    def traits(self) -> Traits:
        """Those of the policy within, whose updates it changes."""
        return replace(self.policy.traits, steady=False)

    def stages(self, cluster: Cluster) -> tuple[Stage, ...]:
        """Those of the policy within, each with these settings."""
        within = self.policy.stages(cluster)
        return tuple(replace(stage, policy=replace(self, policy=stage.policy)) for stage in within)

    @property
    def counts_shares(self) -> bool:
        """As the policy within."""
        return self.policy.counts_shares

    def bounds(self, cluster: Cluster) -> Bounds:
        return self.policy.bounds(cluster)

    def init(self, cluster: Cluster) -> TunedState:
        return TunedState(cluster, self.policy.init(cluster))

    def decide(self, state: TunedState, event: Event) -> tuple[TunedState, Decisions]:
        inner, decisions = self.policy.decide(state.inner, event)
        samples = state.samples + (event.samples if isinstance(event, Report) else 0)
        told = state.told.remove(event.worker) if isinstance(event, Left) else state.told
        state = TunedState(state.cluster, inner, samples, told, state.asked)
        if not any(isinstance(decision, Proceed) for decision in decisions):
            return state, decisions
        return self._configured(state, decisions)

    def _configured(self, state: TunedState, decisions: Decisions) -> tuple[TunedState, Decisions]:
        """With Settings in every Proceed of somebody who does not have those of this epoch."""
        epoch, configured = self._epoch(state), []
        for decision in decisions:
            if isinstance(decision, Proceed):
                asked = decision.settings or state.asked
                news = decision.settings is not None or any(state.told.get(w) != epoch for w in decision.workers)
                state = replace(state, told=state.told.set_all(decision.workers, epoch), asked=asked)
                if news:
                    decision = replace(decision, settings=self._settings(state, epoch))
            configured.append(decision)
        return state, tuple(configured)

    def _epoch(self, state: TunedState) -> int:
        """Epochs since this policy started, as far as they matter to its momentum."""
        if self.momentum not in ("2^i/n", "i/n"):
            return 0
        epoch = state.samples // (state.cluster.dataset_samples or state.cluster.workload_samples)
        return min(epoch, state.cluster.workers)

    def _settings(self, state: TunedState, epoch: int) -> Settings:
        asked = state.asked
        return Settings(
            lr_scale=asked.lr_scale if self.lr == 1 else self.lr * (asked.lr_scale or 1.0),
            momentum=self._momentum(epoch, state.cluster.workers) if asked.momentum is None else asked.momentum,
            batch_size=asked.batch_size or self.batch or None,
        )

    def _momentum(self, epoch: int, workers: int) -> float | None:
        match self.momentum:
            case "same":
                return None
            case "zero":
                return 0.0
            case "1/n":
                return 1 / workers
            case "2^i/n" | "i/n":
                ramp = (2**epoch if self.momentum == "2^i/n" else epoch) / workers
                return ramp if ramp < self.full else None
            case number:
                return float(number)


def is_momentum(text: str) -> bool:
    try:
        return 0 <= float(text) < 1
    except ValueError:
        return False
