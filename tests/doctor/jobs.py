"""Evidence of jobs that never ran: what each rank did is drawn, the rest follows from meeting in every step."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from polyrhythm.doctor.evidence import Evidence, LinkUse

EXCHANGE_S = 0.002


def drawn(
    ranks: int = 4, steps: int = 200, step_s: float = 0.02, deviation: float = 0.03, seed: int = 0
) -> NDArray[np.float64]:
    return np.random.default_rng(seed).normal(step_s, deviation * step_s, (ranks, steps))


def job(
    own_s: NDArray[np.float64], loading_s: NDArray[np.float64] | float = 0.0, batch_size: int | None = 8
) -> Evidence:
    loading = np.broadcast_to(loading_s, own_s.shape).copy()
    return Evidence(
        "a job",
        tuple(range(len(own_s))),
        tuple(f"host{row // 2}" for row in range(len(own_s))),
        np.cumsum(np.tile(own_s.max(axis=0) + EXCHANGE_S, (len(own_s), 1)), axis=1),
        {"computing": own_s - loading, "data loading": loading},
        own_s.max(axis=0) - own_s,
        np.full_like(own_s, EXCHANGE_S),
        batch_size,
    )


SENT = 1_000_000
"""Bytes that each rank sends to the next one in an interval of a second."""


def linked(evidence: Evidence, slow: int, times: float, exchange_s: float, looks: int = 8) -> Evidence:
    """The job as a ring whose exchange takes so long, with one rank's link to the next so many times slower."""
    ranks = len(evidence.ranks)
    share = exchange_s / (float(evidence.own_s.max(axis=0).mean()) + exchange_s)
    ones = np.ones(looks)
    links = tuple(
        LinkUse(
            rank,
            (rank + 1) % ranks,
            evidence.host(rank),
            evidence.host((rank + 1) % ranks),
            False,
            ones,
            SENT * ones,
            share * ones / (times if rank != slow else 1.0),
        )
        for rank in range(ranks)
    )
    return replace(evidence, communication_s=np.full_like(evidence.own_s, exchange_s), links=links)
