"""How often the doctor names somebody where nobody is slow, and how often it finds who is.

Windows are drawn by the simulator's streams of durations: so many ranks, so many steps, durations that vary as stated,
ranks that differ by some per cent, and noise that lasts (a rank's neighbours in time are alike). Healthy windows have
nothing else; in the others one rank, or two in turns, are held up. ``doctor.py [WINDOWS]``; exits with 1 if a bar is
missed.
"""

import sys
from collections import Counter
from itertools import islice
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from polyrhythm.doctor.culprits import culprits
from polyrhythm.doctor.evidence import Evidence
from polyrhythm.sim import Compute
from polyrhythm.sim.cluster.compute import streams

HEALTHY = 10_000
EACH = 500
LEAST_RIGHT = 0.99
SHORTEST = {"pause": 300}
"""It takes ten pauses of one rank of four to tell them from chance."""

STEP_S, EXCHANGE_S = 0.05, 0.005
RANKS, STEPS = (2, 3, 4, 8, 16, 64), (60, 120, 300)
DEVIATIONS = (0.01, 0.05, 0.1, 0.2, 0.3)


class Drawn(NamedTuple):
    own_s: NDArray[np.float64]
    loading_s: NDArray[np.float64]


def window(
    rng: np.random.Generator,
    deviations: tuple[float, ...] = DEVIATIONS,
    least: int = 2,
    shortest: int = 0,
) -> Drawn:
    """Durations of a healthy job."""
    ranks, steps = (
        int(rng.choice([n for n in RANKS if n >= least])),
        int(rng.choice([n for n in STEPS if n >= shortest])),
    )
    distribution = str(rng.choice(["normal", "log-normal"]))
    config = Compute(distribution=distribution, deviation=float(rng.choice(deviations)))  # type: ignore[arg-type]
    means = STEP_S * (1 + 0.01 * rng.uniform(-1, 1, ranks))
    drawn = streams(config, means.tolist(), int(rng.integers(2**31)))
    own_s = np.array([list(islice(stream, steps)) for stream in drawn])
    own_s *= 1 + lasting(rng, own_s.shape) + 0.05 * (rng.random(steps) < 0.02)
    if rng.random() < 0.3:  # every rank stalls now and then, none more than others
        own_s += STEP_S * (rng.random(own_s.shape) < 0.01) * rng.exponential(1.0, own_s.shape)
    return Drawn(own_s, 0.05 * own_s)


def lasting(rng: np.random.Generator, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Noise of up to 3 % whose neighbours in time are alike."""
    memory, spread = rng.uniform(0, 0.9), rng.uniform(0, 0.03)
    noise = rng.normal(0, spread * np.sqrt(1 - memory**2), shape)
    for step in range(1, shape[1]):
        noise[:, step] += memory * noise[:, step - 1]
    return noise


def evidence(drawn: Drawn) -> Evidence:
    own_s, loading_s = drawn
    return Evidence(
        "benchmark",
        tuple(range(len(own_s))),
        (),
        np.cumsum(np.tile(own_s.max(axis=0) + EXCHANGE_S, (len(own_s), 1)), axis=1),
        {"computing": own_s - loading_s, "data loading": loading_s},
        own_s.max(axis=0) - own_s,
        np.full_like(own_s, EXCHANGE_S),
    )


def held_up(kind: str, drawn: Drawn, rng: np.random.Generator) -> tuple[Drawn, set[int]]:
    """The window with somebody slow in it, and who that is."""
    own_s, loading_s = drawn.own_s.copy(), drawn.loading_s.copy()
    ranks, steps = own_s.shape
    who = [int(rank) for rank in rng.permutation(ranks)[: 2 if kind == "rotating" else 1]]
    late = np.zeros(own_s.shape, bool)
    if kind == "pause":
        late[who[0]] = rng.random(steps) < 0.1
    elif kind == "rotating":
        turns = (np.arange(steps) // 10) % 2
        late[who[0]], late[who[1]] = turns == 0, turns == 1
    else:
        late[who[0]] = True
    extra_s = STEP_S * {"pause": 4.0, "rotating": 1.0}.get(kind, 0.5) * late
    return Drawn(own_s + extra_s, loading_s + (extra_s if kind == "data loading" else 0.0)), {*who}


def right(kind: str, drawn: Drawn, who: set[int]) -> bool:
    found, _ = culprits(evidence(drawn))
    part = "computing" if kind == "rotating" else kind
    return {one.rank for one in found} == who and {one.part for one in found} == {part}


def main(windows: int) -> bool:
    """Whether the bars were met."""
    table = Table("window", "number", "right", "bar")
    rng = np.random.default_rng(0)
    alarms = Counter[str]()
    for _ in range(windows):
        drawn = window(rng)
        for one in culprits(evidence(drawn))[0]:
            alarms[f"{one.part}, {one.kind}, {len(drawn.own_s)} ranks"] += 1
    met = not alarms
    table.add_row("healthy", str(windows), str(windows - sum(alarms.values())), "all")
    for kind in ("computing", "data loading", "pause", "rotating"):
        hits = 0
        for _ in range(EACH):
            drawn, who = held_up(kind, window(rng, (0.01, 0.05), 4, SHORTEST.get(kind, 0)), rng)
            hits += right(kind, drawn, who)
        table.add_row(kind, str(EACH), str(hits), f"{LEAST_RIGHT:.0%}")
        met &= hits >= LEAST_RIGHT * EACH
    Console(width=120).print(table)
    if alarms:
        print("false alarms:", dict(alarms))
    return met


if __name__ == "__main__":
    sys.exit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else HEALTHY))
