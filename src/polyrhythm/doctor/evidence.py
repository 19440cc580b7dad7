"""What a job did, from wherever it was read: for each rank and step, what it did itself and how long it waited.

In a collective everyone stands until the last one arrives. So what a rank did itself ends when it arrives, and the
shortest time in the collective is that of the exchange: the rest of a longer one is waiting for others.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyrhythm.errors import TraceError

StepTimes: TypeAlias = NDArray[np.float64]
"""Seconds, a row a rank and a column a step."""

StepPart: TypeAlias = Literal["computing", "data loading", "transfer", "pause", "link"]
"""What a rank spends its own time on; a link to another rank is what all spend time on."""


@dataclass(frozen=True, eq=False)
class LinkUse:
    """What one rank sent to another one over a connection, by intervals.

    Args:
        sender, receiver: ranks.
        sender_host, receiver_host: where they run.
        local: both are on one host.
        lasted_s: of each interval.
        sent: bytes that arrived in it.
        needed_s: what these bytes took at the rate at which the connection delivers them.
    """

    sender: int
    receiver: int
    sender_host: str
    receiver_host: str
    local: bool
    lasted_s: NDArray[np.float64]
    sent: NDArray[np.float64]
    needed_s: NDArray[np.float64]

    @property
    def byte_s(self) -> float:
        """Seconds that a byte needs, mean."""
        return float(self.needed_s.sum() / max(1.0, self.sent.sum()))


@dataclass(frozen=True, eq=False)
class Evidence:
    """What every rank did in the steps that all of them made.

    Args:
        source: what was read, in words.
        ranks: numbers of the rows.
        hosts: of each row; empty where nobody knows.
        start_s: when each step began, on the clock of the first host.
        parts: what each rank did itself before it arrived at the exchange.
        waiting_s: in the exchange, for those who arrived later.
        communication_s: of the exchange itself, once all were there.
        batch_size: samples of a step of one rank; None where nobody knows.
        epoch_samples: of the data set; None where nobody knows.
        synchronous: every step ends in an exchange of all.
        equalised: times are worked out for equal mini-batches from those of unequal ones.
        detail: computing by section of the loop, where the source tells them apart.
        overlap: share of the exchange that the backward pass hid; None where nobody knows.
        wall_s: of all steps together, as the source has measured it.
        notes: what a reader had to leave out.
        links: what the ranks' connections did, where somebody has looked.
    """

    source: str
    ranks: tuple[int, ...]
    hosts: tuple[str, ...]
    start_s: StepTimes
    parts: Mapping[StepPart, StepTimes]
    waiting_s: StepTimes
    communication_s: StepTimes
    batch_size: int | None = None
    epoch_samples: int | None = None
    synchronous: bool = True
    equalised: bool = False
    detail: Mapping[str, StepTimes] = field(default_factory=dict)
    overlap: float | None = None
    wall_s: float = 0.0
    notes: tuple[str, ...] = ()
    links: tuple[LinkUse, ...] = ()

    def __post_init__(self) -> None:
        arrays = [self.start_s, self.waiting_s, self.communication_s, *self.parts.values(), *self.detail.values()]
        shape = len(self.ranks), self.start_s.shape[-1]
        for array in arrays:
            if array.shape != shape or not np.isfinite(array).all():
                raise TraceError(
                    f"{self.source}: not all of the {shape[0]} ranks have finite times of the same {shape[1]} steps; "
                    "give whole traces of one job"
                )

    @property
    def steps(self) -> int:
        return int(self.start_s.shape[1])

    @property
    def own_s(self) -> StepTimes:
        """From the beginning of a step to the arrival at its exchange."""
        return np.asarray(np.sum(list(self.parts.values()), axis=0))

    @property
    def step_s(self) -> StepTimes:
        return self.own_s + self.waiting_s + self.communication_s

    @property
    def exchange_s(self) -> NDArray[np.float64]:
        """Of each step, what is left once the last rank has done its own: the exchange, until the mean rank goes on.

        Where ranks do not meet in each step, what even the one stands that stands least: others wait for steps before.
        """
        if not self.synchronous:
            return np.asarray((self.waiting_s + self.communication_s).min(axis=0))
        return np.asarray(np.maximum(0.0, self.step_s.mean(axis=0) - self.own_s.max(axis=0)))

    @property
    def of_bsp(self) -> bool:
        """Whether what is told is what the job would take under BSP, and not what it takes under its policy."""
        return self.equalised or not self.synchronous

    @property
    def seconds(self) -> float:
        """All steps together, of the mean rank; where ranks do not meet, as if they did."""
        times_s = self.step_s.mean(axis=0) if self.synchronous else self.own_s.max(axis=0) + self.exchange_s
        return float(times_s.sum())

    def host(self, row: int) -> str:
        return self.hosts[row] if self.hosts else ""

    def between(self, first: int, last: int) -> "Evidence":
        """The evidence of these steps alone, from the first to before the last."""

        def cut(array: StepTimes) -> StepTimes:
            return array[:, first:last]

        return replace(
            self,
            start_s=cut(self.start_s),
            parts={name: cut(array) for name, array in self.parts.items()},
            waiting_s=cut(self.waiting_s),
            communication_s=cut(self.communication_s),
            detail={name: cut(array) for name, array in self.detail.items()},
        )
