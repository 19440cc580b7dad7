"""Small learned policies for tests."""

import random
from pathlib import Path

from polyrhythm.policies.rlp.network import Conditions, Layer, Learned, ValueNetwork, dump
from polyrhythm.policies.rlp.views import VIEWS


def learned(
    view: str = "phase",
    best: int | None = None,
    workers: tuple[int, int] = (1, 20),
    window: int = 2,
    keep: bool = False,
) -> Learned:
    """A policy with random values, or one that always takes the action `best`; made for any input."""
    seen, rng = VIEWS[view], random.Random(7)
    actions = len(seen.actions)
    rows = tuple(tuple(rng.gauss(0, 1) * (best is None) for _ in range(seen.inputs)) for _ in range(actions))
    bias = tuple(float(action == best) for action in range(actions))
    ranges = Conditions(workers, (-99.0,) * seen.inputs, (99.0,) * seen.inputs)
    return Learned(view, window, "asp", ranges, ValueNetwork((Layer(rows, bias),)), (("command", "by hand"),), keep)


def written(folder: Path, policy: Learned, name: str = "policy.json") -> str:
    """Its file."""
    path = folder / name
    path.write_text(dump(policy), encoding="utf-8")
    return str(path)
