from collections.abc import Iterator

import pytest
import torch

from polyrhythm.runtime.worker.losses import Losses


@pytest.fixture
def losses() -> Iterator[Losses]:
    losses = Losses()
    losses.listen(True)
    yield losses
    losses.listen(False)


def leaf(*shape: int) -> torch.Tensor:
    return torch.full(shape, 2.0, requires_grad=True)


def test_hears_what_a_script_calls_backward_on(losses: Losses) -> None:
    weight = leaf(3)
    (weight.square().sum() / 3).backward()  # type: ignore[no-untyped-call]
    assert losses.take() == 4.0
    assert weight.grad is not None
    assert losses.take() is None


def test_passes_of_one_step_are_averaged(losses: Losses) -> None:
    for scale in (1.0, 2.0):
        (scale * leaf(1)).backward()  # type: ignore[no-untyped-call]
    assert losses.take() == 3.0


def test_a_vector_is_no_loss(losses: Losses) -> None:
    leaf(3).mul(2).backward(torch.ones(3))  # type: ignore[no-untyped-call]
    assert losses.take() is None


def test_nothing_is_left_behind() -> None:
    before = torch.Tensor.backward
    losses = Losses()
    losses.listen(False)
    losses.listen(True)
    losses.listen(True)
    leaf(1).backward()  # type: ignore[no-untyped-call]
    losses.listen(False)
    assert torch.Tensor.backward is before
    assert losses.take() is None
