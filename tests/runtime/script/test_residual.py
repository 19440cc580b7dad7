"""A script with much of what real ones have, under policies and beside torchrun."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.script.runs import Run, adapted, plain


def saved(run: Run, rank: int) -> dict[str, Any]:
    made: dict[str, Any] = torch.load(run.folder / f"end.{rank}")
    return made


def equal(a: Any, b: Any) -> bool:
    """Whether `a` is `b`; the state of a parameter that never had a gradient may be there or not."""
    if isinstance(a, dict):
        return a.keys() >= b.keys() and all(equal(a[key], b[key]) for key in b)
    if isinstance(a, list):
        return len(a) == len(b) and all(equal(x, y) for x, y in zip(a, b, strict=True))
    return torch.equal(a, b) if isinstance(a, torch.Tensor) else bool(a == b)


@pytest.mark.parametrize(
    "flags",
    [
        ("--workers", "2"),
        ("--accumulate", "3"),
        ("--accumulate", "3", "--samples", "128"),
        ("--accumulate", "3", "--samples", "128", "--rest", "--per-step"),
        ("--accumulate", "4", "--samples", "250", "--rest", "--drop-last", "--workers", "1"),
        ("--branches",),
        ("--per-step", "--log-every", "1"),
    ],
    ids=" ".join,
)
def test_bsp_is_what_torchrun_does(tmp_path: Path, flags: tuple[str, ...]) -> None:
    ours, theirs = adapted(tmp_path / "ours", "residual.py", *flags), plain(tmp_path / "theirs", "residual.py", *flags)
    for rank in range(2):
        assert ours.epochs_of(rank) == theirs.epochs_of(rank)
        assert equal(saved(ours, rank)["optimizer"], saved(theirs, rank)["optimizer"])
        a, b = saved(ours, rank)["model"], saved(theirs, rank)["model"]
        # Torch hands out buffers after a pass that ended in an exchange, we at the end of each epoch.
        names = [name for name in b if rank == 0 or "running" not in name]
        assert all(torch.equal(a[name], b[name]) for name in names)
    assert ours.stdout(0) == theirs.stdout(0)


@pytest.mark.parametrize(
    ("policy", "flags"),
    [
        ("asp", ("--workers", "2")),
        ("ssp:1", ("--accumulate", "3")),
        ("asp", ("--accumulate", "3", "--samples", "128", "--rest")),
        ("asp", ("--per-step", "--whole")),
        ("local:4", ("--branches", "--rebuild")),
    ],
)
def test_other_policies_see_every_sample_once_and_agree(tmp_path: Path, policy: str, flags: tuple[str, ...]) -> None:
    run = adapted(tmp_path, "residual.py", *flags, policy=policy)
    assert run.seen == [list(range(128 if "--rest" in flags else 96))] * 3
    first, second = (saved(run, rank)["model"] for rank in range(2))
    parameters = [name for name in first if "norm." not in name]
    assert all(torch.equal(first[name], second[name]) for name in parameters)
    rates = [line.split()[-1] for line in run.stdout(0)]
    assert len(set(rates)) == 3


@pytest.mark.parametrize("policy", ["asp", "ssp:1"])
def test_a_script_that_saves_its_optimizer_saves_what_the_servers_have(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path, "residual.py", policy=policy)
    first, second = (saved(run, rank)["optimizer"]["state"] for rank in range(2))
    assert equal(first, second)
    pushes = 3 * 96 // 8 - 2
    assert {state["step"].item() for state in first.values()} == {1 + pushes}, "the warm-up step, and one a push"
