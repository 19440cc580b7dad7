from collections.abc import Iterator

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from polyrhythm.errors import UsageError
from polyrhythm.runtime.worker.losses.heard import Losses


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


def test_a_loss_that_is_read_early_is_the_same(losses: Losses) -> None:
    """Its value is that of this moment, and only what was not read yet is a tensor still."""
    (1.0 * leaf(1)).backward()  # type: ignore[no-untyped-call]
    losses.read()
    losses.read()
    (2.0 * leaf(1)).backward()  # type: ignore[no-untyped-call]
    assert losses.take() == 3.0
    (3.0 * leaf(1)).backward()  # type: ignore[no-untyped-call]
    losses.read()
    assert losses.drain() == [6.0]
    assert losses.drain() == []


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


def test_what_no_step_follows_is_not_kept_for_ever(losses: Losses) -> None:
    for _ in range(3000):
        leaf(1).backward()  # type: ignore[no-untyped-call]
    assert 0 < len(losses.drain()) < 3000
    assert losses.drain() == []


def outputs() -> Tensor:
    """Logits of two classes for four samples."""
    return torch.ones(4, 3) @ torch.ones(3, 2, requires_grad=True)


CLASSES = torch.tensor([0, 1, 0, 1])
SUMS = {
    "cross entropy": lambda: F.cross_entropy(outputs(), CLASSES, reduction="sum"),
    "squares": lambda: F.mse_loss(outputs(), torch.zeros(4, 2), reduction="sum"),
    "by hand": lambda: F.cross_entropy(outputs(), CLASSES, reduction="none").sum(),
    "scaled": lambda: 64.0 * F.cross_entropy(outputs(), CLASSES, reduction="sum"),
    "with another": lambda: F.cross_entropy(outputs(), CLASSES) + F.nll_loss(outputs(), CLASSES, reduction="sum"),
}
MEANS = {
    "cross entropy": lambda: F.cross_entropy(outputs(), CLASSES),
    "by hand": lambda: F.cross_entropy(outputs(), CLASSES, reduction="none").mean(),
    "divided": lambda: F.cross_entropy(outputs(), CLASSES, reduction="sum") / len(CLASSES),
    "batchmean": lambda: F.kl_div(outputs(), torch.ones(4, 2), reduction="batchmean"),
    "smoothed": lambda: F.cross_entropy(outputs(), CLASSES, label_smoothing=0.1),
    "with a penalty": lambda: F.cross_entropy(outputs(), CLASSES) + 0.1 * leaf(3).square().sum(),
    "scaled": lambda: 64.0 * (F.cross_entropy(outputs(), CLASSES) / 2),
}


@pytest.fixture
def means() -> Iterator[Losses]:
    losses = Losses()
    losses.listen(False, means=True)
    yield losses
    losses.listen(False)


@pytest.mark.parametrize("name", SUMS)
def test_a_sum_over_a_mini_batch_is_refused(means: Losses, name: str) -> None:
    with pytest.raises(UsageError, match="the loss is a sum over its mini-batch"):
        SUMS[name]().backward()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", MEANS)
def test_a_mean_is_not(means: Losses, name: str) -> None:
    MEANS[name]().backward()  # type: ignore[no-untyped-call]
    assert means.take() is None, "nobody listens"


@pytest.mark.parametrize("name", SUMS)
def test_sums_are_heard_like_any_loss(losses: Losses, name: str) -> None:
    loss = SUMS[name]()
    loss.backward()  # type: ignore[no-untyped-call]
    assert losses.take() == pytest.approx(loss.item())
