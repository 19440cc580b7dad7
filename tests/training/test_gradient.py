from collections.abc import Callable
from itertools import pairwise

import pytest
import torch
from torch import nn

from polyrhythm.training.averaging import Buffers
from polyrhythm.training.data.task import Split, Task
from polyrhythm.training.flat import FlatModel
from polyrhythm.training.gradient import (
    GradientRequest,
    PlainGradients,
    StackedGradients,
    ThreadedGradients,
    fastest,
    one_thread,
)

Build = Callable[[], nn.Module]


def linear_stack(*widths: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def task_and_model(build: Build, inputs: torch.Tensor | None = None) -> tuple[Task, FlatModel]:
    torch.manual_seed(0)
    inputs = torch.randn(40, 1, 3, 4) if inputs is None else inputs
    split = Split(inputs, torch.randint(0, 5, (40,)))
    return Task("t", split, split, lambda seed: build()), FlatModel(build())


def requests(model: FlatModel, rows: int, batch: int = 7) -> list[GradientRequest]:
    buffers = Buffers(model.buffers, model.counters)
    return [
        GradientRequest(torch.randn(model.layout.size) * 0.5, torch.randint(0, 40, (batch,)), buffers.copy())
        for _ in range(rows)
    ]


@pytest.mark.parametrize("widths", [(12, 5), (12, 8, 5), (12, 9, 7, 5)])
@pytest.mark.parametrize("rows", [1, 3, 32])
def test_stacked_equals_plain(widths: tuple[int, ...], rows: int) -> None:
    task, model = task_and_model(lambda: linear_stack(*widths))
    batch = requests(model, rows)
    assert isinstance(fastest(task, model), StackedGradients)
    stacked = fastest(task, model).compute(batch)
    for ours, theirs in zip(stacked, PlainGradients(task, model).compute(batch), strict=True):
        torch.testing.assert_close(ours.vector, theirs.vector)
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
        assert ours.sq_norm == pytest.approx(theirs.sq_norm, rel=1e-4)


def test_bytes_are_scaled_alike() -> None:
    pixels = torch.randint(0, 256, (40, 1, 3, 4), dtype=torch.uint8)
    task, model = task_and_model(lambda: linear_stack(12, 8, 5), pixels)
    batch = requests(model, 4)
    for ours, theirs in zip(
        StackedGradients(task, model).compute(batch), PlainGradients(task, model).compute(batch), strict=True
    ):
        torch.testing.assert_close(ours.vector, theirs.vector, rtol=1e-4, atol=1e-2)


def test_later_gradients_leave_earlier_ones_alone() -> None:
    task, model = task_and_model(lambda: linear_stack(12, 8, 5))
    gradients = StackedGradients(task, model)
    first = gradients.compute(requests(model, 2))[0].vector
    kept = first.clone()
    gradients.compute(requests(model, 2))
    assert torch.equal(first, kept)


def without_bias() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5, bias=False))


def frozen() -> nn.Module:
    model = linear_stack(12, 8, 5)
    model[1].requires_grad_(False)  # type: ignore[index]
    return model


def with_tanh() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 5))


def ends_in_relu() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU())


def normalised() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(12), nn.Linear(12, 5))


@pytest.mark.parametrize("build", [without_bias, frozen, with_tanh, ends_in_relu, normalised])
def test_other_models_go_through_autograd(build: Build) -> None:
    task, model = task_and_model(build)
    assert isinstance(fastest(task, model), PlainGradients)


def test_plain_is_autograd_at_the_parameters_of_the_request() -> None:
    task, model = task_and_model(with_tanh)
    (request,) = requests(model, 1)
    (gradient,) = PlainGradients(task, model).compute([request])
    module = with_tanh()
    model_of_copy = FlatModel(module)
    model_of_copy.parameters.copy_(request.parameters)
    inputs, targets = task.batch(request.indices)
    loss = task.loss(module(inputs), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    expected = model_of_copy.gather_gradients(torch.empty_like(gradient.vector))
    torch.testing.assert_close(gradient.vector, expected)
    assert gradient.loss == pytest.approx(loss.item())
    assert gradient.sq_norm == pytest.approx(expected.square().sum().item())


def test_each_request_has_its_own_buffers() -> None:
    task, model = task_and_model(normalised)
    first, second = requests(model, 2)
    PlainGradients(task, model).compute([first, first, second])
    assert [request.buffers.counters[0].item() for request in (first, second)] == [2, 1]
    assert not torch.equal(first.buffers.vector, second.buffers.vector)


def test_parameters_that_the_loss_does_not_reach_have_zero_gradient() -> None:
    class Unused(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused = nn.Linear(12, 5), nn.Linear(2, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.used(x.flatten(1))  # type: ignore[no-any-return]

    task, model = task_and_model(Unused)
    (gradient,) = PlainGradients(task, model).compute(requests(model, 1))
    assert not gradient.vector[-6:].any()
    assert gradient.vector[:-6].any()


@pytest.mark.parametrize("build", [lambda: linear_stack(12, 9, 7, 5), normalised, with_tanh])
def test_quality_is_that_of_the_model_with_these_parameters(build: Build) -> None:
    task, model = task_and_model(build)
    (request,) = requests(model, 1)
    accuracy, loss = fastest(task, model).evaluate(request.parameters, request.buffers)
    model.load(request.parameters, request.buffers.vector, request.buffers.counters)
    assert (accuracy, loss) == pytest.approx(task.evaluate(model.module), rel=1e-5)


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Dropout(0.5), nn.Linear(8, 5))


def test_threads_change_no_bit() -> None:
    task, model = task_and_model(with_tanh)
    with one_thread():
        threaded = fastest(task, model, threads=3)
        assert isinstance(threaded, ThreadedGradients)
        for rows in range(1, threaded.rows + 1):
            batch = requests(model, rows)
            for ours, theirs in zip(threaded.compute(batch), PlainGradients(task, model).compute(batch), strict=True):
                assert torch.equal(ours.vector, theirs.vector)
                assert (ours.loss, ours.sq_norm) == (theirs.loss, theirs.sq_norm)


@pytest.mark.parametrize("build", [with_dropout, normalised])
def test_what_depends_on_the_order_has_no_threads(build: Build) -> None:
    task, model = task_and_model(build)
    before = torch.get_rng_state()
    assert type(fastest(task, model, threads=3)) is PlainGradients
    assert torch.equal(torch.get_rng_state(), before)
