"""A rank whose script makes no step with a mini-batch with which the others make one."""

from pathlib import Path

import pytest
import torch

from tests.runtime.script.runs import adapted, try_adapted
from tests.runtime.script.test_several import weights


@pytest.mark.parametrize("before", ["forward", "backward"])
@pytest.mark.parametrize("who", [0, 1])
@pytest.mark.parametrize("what", ["ddp", "unused", "static", "sparse", "alone"])
def test_it_has_the_step_of_the_others(tmp_path: Path, what: str, who: int, before: str) -> None:
    run = adapted(tmp_path, "aside.py", what, str(who), "4,9,24", before)
    assert torch.equal(weights(run, 0), weights(run, 1))
    assert weights(run).isfinite().all()


@pytest.mark.parametrize("batches", ["8", "7", "7,8", "11,12"])
def test_a_part_of_a_step_is_no_step(tmp_path: Path, batches: str) -> None:
    """Left out are the last mini-batch of a step, the first, both, and both at the end of an epoch."""
    run = adapted(tmp_path, "aside.py", "parts", "1", batches, "forward")
    assert torch.equal(weights(run, 0), weights(run, 1))


@pytest.mark.parametrize(
    ("what", "before"),
    [
        *(("alone several", before) for before in ("forward", "backward", "second")),
        *(("alone several scaled", before) for before in ("forward", "second", "infinite")),
    ],
)
@pytest.mark.parametrize("who", [0, 1])
def test_of_several_optimizers_those_step_that_step_elsewhere(tmp_path: Path, what: str, who: int, before: str) -> None:
    run = adapted(tmp_path, "aside.py", what, str(who), "4,9,24", before)
    assert torch.equal(weights(run, 0), weights(run, 1))


def test_what_belongs_to_a_step_of_several_wrappers_is_not_guessed(tmp_path: Path) -> None:
    run = try_adapted(tmp_path, "aside.py", "gan", "1", "4", "forward")
    assert run.codes == [0, 2]
    said = (
        "rank 1 has made no backward pass with its mini-batch of step 3, in which the others wait for it, and it cannot"
    )
    assert said in run.stderr(1)


def test_nobody_waits_for_a_rank_that_reads_its_own_stream(tmp_path: Path) -> None:
    """As under torchrun its passes meet those that the others make of other mini-batches; it has fewer at the end."""
    run = adapted(tmp_path, "aside.py", "stream", "1", "4", "forward")
    assert torch.equal(weights(run, 0), weights(run, 1))


@pytest.mark.parametrize("what", ["ddp", "alone"])
def test_the_first_mini_batch_is_left_out(tmp_path: Path, what: str) -> None:
    run = try_adapted(tmp_path, "aside.py", what, "1", "1", "forward")
    assert 1 not in run.codes
