import re
import sys
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from polyrhythm.errors import UsageError
from polyrhythm.runtime.worker.losses import FiniteWatch, Losses, ScriptFigures, WriterEar


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


def test_what_no_step_follows_is_not_kept_for_ever(losses: Losses) -> None:
    for _ in range(3000):
        leaf(1).backward()  # type: ignore[no-untyped-call]
    assert 0 < len(losses.drain()) < 3000
    assert losses.drain() == []


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_loss_that_is_not_finite_is_seen_in_its_step(value: str) -> None:
    watch = FiniteWatch()
    assert watch.see([torch.tensor(1.0), torch.tensor(3e38)], 4) is None
    assert watch.see([], 5) is None
    found = watch.see([torch.tensor(1.0), torch.tensor(float(value))], 6)
    assert found is not None
    assert (found[0], str(found[1])) == (6, value)


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


def test_what_a_script_tells_its_writer_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    class SummaryWriter:
        def add_scalar(self, tag: str, scalar_value: object, step: int | None = None) -> tuple[str, object, int | None]:
            return tag, scalar_value, step

    monkeypatch.setitem(sys.modules, "tensorboardX.writer", SimpleNamespace(SummaryWriter=SummaryWriter))
    plain, figures = SummaryWriter.add_scalar, ScriptFigures()
    ear = WriterEar(figures)
    assert SummaryWriter().add_scalar("eval/accuracy", torch.tensor(0.5), 3) == ("eval/accuracy", 0.5, 3)
    SummaryWriter().add_scalar("note", "no number")
    for number in range(100):
        SummaryWriter().add_scalar(f"tag {number}", number)
    ear.close()
    assert SummaryWriter.add_scalar is plain
    taken = figures.take()
    assert (len(taken), taken["eval/accuracy"]) == (32, 0.5)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"accuracy": "high"}, "accuracy must be a number for log but got 'high'"),
        ({"a" * 65: 1.0}, "a name for log must be a text of 1 to 64 characters but got"),
        ({str(number): 1.0 for number in range(33)}, "log takes 32 names at most"),
    ],
)
def test_what_cannot_be_reported_is_one_line(values: dict[str, object], line: str) -> None:
    with pytest.raises(UsageError, match=re.escape(line)):
        ScriptFigures().tell(values)
