"""Collectives inside the loop of workers that make steps of their own."""

from pathlib import Path

import pytest
import torch

from tests.runtime.script.runs import adapted, plain, switched, try_adapted
from tests.runtime.script.test_kinds import weights
from tests.runtime.script.test_refusals import line_of

SAID = "inside the step loop gives each worker its own value under asp"


def test_what_is_reduced_for_the_log_is_each_workers_own_and_said_once(tmp_path: Path) -> None:
    run = adapted(tmp_path, "logged.py", policy="asp")
    for rank in run.ranks:
        assert run.stdout(rank) == ["1.0", "1.0", "True"]
    said = [line for line in run.stderr().splitlines() if SAID in line]
    assert len(said) == 3
    assert [line.split(": ")[2].split()[0] for line in said] == ["all_reduce", "all_gather_into_tensor", "barrier"]


@pytest.mark.parametrize("policy", ["bsp", "local:4"])
def test_workers_that_step_together_have_that_of_all(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path, "logged.py", policy=policy)
    assert [run.stdout(rank)[-1] for rank in run.ranks] == ["False", "False"]
    assert SAID not in run.stderr()


def test_it_follows_a_live_switch(tmp_path: Path) -> None:
    run = switched(tmp_path, "logged.py", switches={5: "asp", 15: "bsp"})
    assert run.stdout(0)[:2] == ["1.0", "1.0"]


def test_after_steps_of_their_own_nobody_waits_in_the_loop(tmp_path: Path) -> None:
    run = switched(tmp_path, "logged.py", "seldom", switches={5: "asp", 11: "bsp"})
    assert run.stdout(0)[:4] == ["1.0"] * 4
    said = "all_reduce inside the step loop gives each worker its own value"
    assert run.stderr().count(f"{said} under asp") + run.stderr().count(f"{said} after steps of workers") == 1


def test_a_count_of_all_that_a_loss_is_divided_by_is_the_workers_own(tmp_path: Path) -> None:
    theirs = plain(tmp_path / "theirs", "tokens.py", stand_in=False)
    ours = adapted(tmp_path / "ours", "tokens.py", stand_in=False)
    assert torch.equal(weights(ours), weights(theirs))
    run = adapted(tmp_path / "asp", "tokens.py", policy="asp", stand_in=False)
    assert torch.equal(weights(run, 0), weights(run, 1))
    assert torch.allclose(weights(run), weights(theirs), atol=0.2)
    assert "all_gather inside the step loop gives each worker its own value under asp" in run.stderr()


REFUSED = {
    "count": (
        "# on which a gradient depends",
        "count in whole numbers (.long()), which may be each worker's own",
    ),
    "weight": ("# on which a gradient depends", "or leave it out, so that each worker takes its own"),
    "gradients": (
        "# by hand",
        "or leave gradients and parameters to DistributedDataParallel, which ",
    ),
    "broadcast": ("# in the loop", "or do it after the loop"),
}
"""What `factor.py` does that cannot be, where, and a remedy that the line names."""

REMEDIES = [
    ("whole", "asp"),
    ("nothing", "asp"),
    ("broadcast after", "asp"),
    ("count", "bsp"),
    ("count", "local"),
    ("gradients", "local"),
]


@pytest.mark.parametrize(("what", "policy"), [*((what, "asp") for what in REFUSED), ("count", "ssp:3")])
def test_the_one_line_of_what_cannot_be_names_its_place_and_a_remedy(tmp_path: Path, what: str, policy: str) -> None:
    run = try_adapted(tmp_path, "factor.py", what, policy=policy, stand_in=False)
    assert 2 in run.codes
    call, remedy = REFUSED[what]
    place = f"factor.py:{line_of(call, 'factor.py')}: "
    (said,) = {line for rank in run.ranks for line in run.stderr(rank).splitlines() if place in line}
    assert f"inside the step loop has no common value under {policy}" in said
    assert "use policies in synchronous mode (bsp, local)" in said
    assert remedy in said


@pytest.mark.parametrize(("what", "policy"), REMEDIES)
def test_each_remedy_that_a_line_names_works(tmp_path: Path, what: str, policy: str) -> None:
    run = adapted(tmp_path, "factor.py", *what.split(), policy=policy, stand_in=False)
    assert torch.equal(weights(run, 0), weights(run, 1))
    assert "no common value" not in run.stderr()
