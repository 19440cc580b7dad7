import torch
from torch import nn

from polyrhythm.training.data.task import EVALUATION_BATCH, Split, Task, cross_entropy, epoch_order


def constant_model(seed: int) -> nn.Module:
    """Predicts class 1 whatever it sees."""
    model = nn.Linear(2, 3)
    nn.init.zeros_(model.weight)
    model.bias.data = torch.tensor([0.0, 1.0, 0.0])
    return model


def task(samples: int, inputs: torch.Tensor | None = None) -> Task:
    inputs = torch.zeros(samples, 2) if inputs is None else inputs
    split = Split(inputs, torch.arange(samples) % 3)
    return Task("t", split, split, constant_model)


def test_an_epoch_is_a_permutation_that_depends_on_seed_and_epoch_alone() -> None:
    first = epoch_order(100, 3, 0).clone()
    assert sorted(first.tolist()) == list(range(100))
    epoch_order.cache_clear()
    assert torch.equal(epoch_order(100, 3, 0), first)
    assert not torch.equal(epoch_order(100, 3, 1), first)
    assert not torch.equal(epoch_order(100, 4, 0), first)


def test_an_evaluation_covers_every_sample_once_across_batches() -> None:
    samples = 2 * EVALUATION_BATCH + 100
    accuracy, loss = task(samples).evaluate(model := constant_model(0))
    assert accuracy == sum(i % 3 == 1 for i in range(samples)) / samples
    expected = cross_entropy(model(torch.zeros(samples, 2)), torch.arange(samples) % 3)
    torch.testing.assert_close(loss, expected.item())
    assert model.training


def test_a_language_model_is_scored_by_token() -> None:
    outputs = torch.zeros(2, 3, 4)
    outputs[..., 1] = 9.0
    targets = torch.tensor([[1, 1, 0], [1, 2, 1]])
    split = Split(outputs, targets)
    quality = Task("text", split, split, lambda seed: nn.Identity()).evaluate(nn.Identity())
    assert quality.accuracy == 4 / 6
    torch.testing.assert_close(quality.loss, nn.functional.cross_entropy(outputs.view(6, 4), targets.view(6)).item())


def test_bytes_are_standardised_and_floats_stay() -> None:
    split = Split(torch.tensor([[[[0]]], [[[255]]]], dtype=torch.uint8), torch.tensor([0, 1]))
    half = torch.tensor(127.5)
    scaled = Task("t", split, split, constant_model, mean=half, std=half)
    inputs, targets = scaled.batch(torch.tensor([1, 0]))
    assert inputs.flatten().tolist() == [1.0, -1.0]
    assert targets.tolist() == [1, 0]
    floats = torch.randn(4, 2)
    assert torch.equal(task(4, floats).batch(torch.arange(4))[0], floats)


def test_subsets_are_the_first_samples() -> None:
    small = task(10).subset(4, None)
    assert (len(small.train), len(small.test)) == (4, 10)
    assert small.train.targets.tolist() == [0, 1, 2, 0]
