"""What the transfers of a step take longer because workers with unequal shares come together.

Equal shares let the faster workers send while the slower ones compute. Unequal ones make all send at once, and links
that all share are slower then. So a round of BSP does not have the transfers that are measured under unequal shares.
"""

from collections.abc import Iterable
from typing import NamedTuple

from polyrhythm.core.worker_map import WorkerMap

EVEN_ROUNDS, UNEVEN_ROUNDS = 3, 8
"""Rounds over which transfers are averaged: a worker becomes slow some rounds before shares become unequal."""


class Transfers(NamedTuple):
    """Mean seconds of a worker's latest transfers under equal shares and under unequal ones; None where unknown.

    >>> Transfers(even_s=3.0).after(4.0, uneven=True).extra_s, Transfers().after(4.0, uneven=True).extra_s
    (1.0, 0.0)
    """

    even_s: float | None = None
    uneven_s: float | None = None

    def after(self, transfer_s: float, uneven: bool) -> "Transfers":
        if uneven:
            return Transfers(self.even_s, moved(self.uneven_s, transfer_s, UNEVEN_ROUNDS))
        return Transfers(moved(self.even_s, transfer_s, EVEN_ROUNDS), self.uneven_s)

    @property
    def extra_s(self) -> float:
        """By how much transfers are longer under unequal shares; 0 where they are shorter, as when a link is faster."""
        if self.even_s is None or self.uneven_s is None:
            return 0.0
        return max(0.0, self.uneven_s - self.even_s)


UNKNOWN = Transfers()


def moved(mean_s: float | None, new_s: float, rounds: int) -> float:
    return new_s if mean_s is None else mean_s + (new_s - mean_s) / rounds


def transfers_after(
    known: WorkerMap[Transfers], transfers: Iterable[tuple[int, float]], uneven: bool
) -> WorkerMap[Transfers]:
    """With the transfers of a round."""
    for worker, transfer_s in transfers:
        known = known.set(worker, (known.get(worker) or UNKNOWN).after(transfer_s, uneven))
    return known
