"""Which link holds the exchange up: what each needs for its bytes, beside what the others of its kind need."""

from collections.abc import Sequence
from statistics import median

import numpy as np

from polyrhythm.doctor.culprits import LEAST_LOST, Culprit
from polyrhythm.doctor.evidence import Evidence, LinkUse

CARRIES = 0.1
"""Share of the bytes of the busiest link from which a link takes part in the exchange; others carry control words."""

THIN = 2.0
"""Times as long as others need for a byte, from which a link is slow."""

LEAST_LOOKS = 3
"""Intervals in which a link must be seen slow."""

MOSTLY = 0.6
"""Share of slow intervals from which a link is slow all the time."""


def slow_links(evidence: Evidence) -> list[Culprit]:
    """Links that lengthen every exchange, the costliest first; none where all are alike, or nobody has looked."""
    found = [
        culprit
        for local in (True, False)
        for culprit in slow_among(evidence, carrying([link for link in evidence.links if link.local == local]))
    ]
    return sorted(found, key=lambda one: -one.lost_s)


def carrying(links: Sequence[LinkUse]) -> list[LinkUse]:
    most = max((link.sent.sum() for link in links), default=0.0)
    return [link for link in links if link.sent.sum() >= CARRIES * most > 0]


def slow_among(evidence: Evidence, links: Sequence[LinkUse]) -> list[Culprit]:
    culprits = []
    for link in links:
        others = [other.byte_s for other in links if other is not link]
        if others and (culprit := judged(evidence, link, median(others))):
            culprits.append(culprit)
    return culprits


def judged(evidence: Evidence, link: LinkUse, usual_byte_s: float) -> Culprit | None:
    """What a link costs if others need so long for a byte; None if that is nothing to speak of."""
    exchange = float(evidence.communication_s.sum(axis=1).mean()) / evidence.seconds
    excess = (link.needed_s - usual_byte_s * link.sent) / link.lasted_s
    slow = (link.needed_s > THIN * usual_byte_s * link.sent) & (excess > LEAST_LOST)
    if slow.sum() < LEAST_LOOKS:
        return None
    # What is hidden behind the backward pass costs nothing.
    lost = min(float(np.average(np.where(slow, excess, 0.0), weights=link.lasted_s)), exchange)
    if lost < LEAST_LOST:
        return None
    share = float(slow.mean())
    return Culprit(
        rank=link.sender,
        host=link.sender_host,
        part="link",
        section="",
        kind="persistent" if share >= MOSTLY else "transient",
        late_share=1.0 if share >= MOSTLY else share,
        excess_s=lost * float(evidence.step_s.mean()) / (1.0 if share >= MOSTLY else share),
        lost_s=lost * evidence.seconds,
        lost_share=lost,
        peer=link.receiver,
        peer_host=link.receiver_host,
    )
