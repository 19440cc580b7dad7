"""What an exchange costs by its size, from one job: the bytes on the wire, and what it takes beside them."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrhythm.doctor.evidence import Evidence, LinkUse


class ExchangeCost(NamedTuple):
    """Of one exchange of all ranks.

    Attributes:
        seconds: of it in all.
        wire_s: of these, what shrinks with the bytes.
        message_bytes: what each rank contributes; 1 where nobody has seen bytes, 0 if an exchange takes no time.
        bytes_per_s: at which each rank sends, so that the exchange takes as long as it did.
    """

    seconds: float
    wire_s: float
    message_bytes: float
    bytes_per_s: NDArray[np.float64]

    @property
    def fixed_s(self) -> float:
        return self.seconds - self.wire_s


def cost_by_size(evidence: Evidence) -> ExchangeCost:
    """The mean exchange as a ring, in which each rank sends ``2 (n - 1) / n`` of a message over the slowest link.

    Without counts of bytes all of the exchange is taken for bytes, of which nobody knows how many there are: for one.
    """
    ranks, seconds = len(evidence.ranks), float(evidence.exchange_s.mean())
    around = 2 * (ranks - 1) / ranks
    rates = np.full(ranks, np.inf)
    if not evidence.links:
        known = seconds > 0
        return ExchangeCost(seconds, seconds, float(known), np.full(ranks, around / seconds) if known else rates)
    step_s = float(evidence.step_s.mean())
    sent, needed_s = [0.0] * ranks, [0.0] * ranks
    for link in evidence.links:
        row = evidence.ranks.index(link.sender)
        sent[row] += per_step(link, link.sent, step_s)
        needed_s[row] += per_step(link, link.needed_s, step_s)
    message = float(np.median(sent)) / around
    wire_s = min(max(needed_s), seconds)
    # What the backward pass hides of a slow link counts as if the link were that much faster.
    hidden = wire_s / max(max(needed_s), 1e-12)
    for row in range(ranks):
        if needed_s[row] > 0:
            rates[row] = sent[row] / (needed_s[row] * hidden) if hidden else np.inf
    return ExchangeCost(seconds, wire_s, message, rates)


def per_step(link: LinkUse, amounts: NDArray[np.float64], step_s: float) -> float:
    return float(amounts.sum() / link.lasted_s.sum()) * step_s
