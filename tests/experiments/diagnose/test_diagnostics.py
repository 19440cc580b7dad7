"""Densities, spreads and curvature against what they are by definition."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from polyrhythm.training.data.task import Split, Task
from polyrhythm.training.flat import FlatModel
from polyrhythm.training.models import LanguageModel, resnet, seeded
from polyrhythm_experiments.diagnose.diagnostics import density, distance, power_iteration, spread, top_eigenvalue

BUILDS: dict[str, Callable[[], nn.Module]] = {
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(16, 3), nn.Tanh(), nn.Linear(3, 3)),
    "convolutions and batch-norm": lambda: nn.Sequential(
        nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3)
    ),
}


def images(build: Callable[[], nn.Module]) -> Task:
    random = torch.Generator().manual_seed(0)
    split = Split(torch.randn(24, 1, 4, 4, generator=random), torch.randint(3, (24,), generator=random))
    return Task("images", split, split, lambda seed: seeded(build, seed))


def whole_hessian(model: FlatModel, task: Task, indices: Tensor) -> Tensor:
    inputs, targets = task.batch(indices)
    loss = task.loss(model.module(inputs), targets)
    slopes = torch.autograd.grad(loss, model.tensors, create_graph=True)
    slope = torch.cat([part.reshape(-1) for part in slopes])
    rows = [torch.autograd.grad(entry, model.tensors, retain_graph=True) for entry in slope]
    return torch.stack([torch.cat([part.reshape(-1) for part in row]) for row in rows])


@pytest.mark.parametrize("name", BUILDS)
def test_the_largest_eigenvalue_is_that_of_the_whole_hessian(name: str) -> None:
    task = images(BUILDS[name])
    model, indices = FlatModel(task.build(0)), torch.arange(24)
    before = model.parameters.clone(), model.buffers.clone()
    found = top_eigenvalue(model, task, indices)
    assert all(torch.equal(*pair) for pair in zip(before, (model.parameters, model.buffers), strict=True))
    assert found == pytest.approx(float(torch.linalg.eigvalsh(whole_hessian(model, task, indices))[-1]), rel=0.02)


def test_deep_networks_and_attention_have_a_second_derivative() -> None:
    random = torch.Generator().manual_seed(0)
    deep = images(lambda: resnet(1, depth=8, classes=3))
    assert np.isfinite(top_eigenvalue(FlatModel(deep.build(0)), deep, torch.arange(8)))
    words = torch.randint(7, (6, 5), generator=random)
    text = Task("text", Split(words, words), Split(words, words), lambda seed: LanguageModel(7, 5, width=8, depth=1))
    assert np.isfinite(top_eigenvalue(FlatModel(text.build(0)), text, torch.arange(6)))


def test_power_iteration_finds_the_size_and_keeps_the_sign() -> None:
    values = torch.tensor([-5.0, 1.0, 2.0])
    assert power_iteration(lambda vector: values * vector, torch.ones(3)) == pytest.approx(-5.0, rel=0.01)
    assert power_iteration(torch.zeros_like, torch.ones(3)) == 0.0


def test_a_spread_is_that_of_the_definition() -> None:
    gradients = torch.randn(6, 10, generator=torch.Generator().manual_seed(0))
    found = spread(list(gradients))
    assert found.variance == pytest.approx(float(gradients.var(0).sum()), rel=1e-5)
    assert found.sq_norm == pytest.approx(float(gradients.square().sum(1).mean()), rel=1e-5)
    assert torch.allclose(found.mean, gradients.mean(0))
    assert spread([torch.ones(3)] * 4).variance == 0.0


def test_a_density_integrates_to_one_and_keeps_its_shape_when_thinned() -> None:
    values = torch.randn(50_000, generator=torch.Generator().manual_seed(0))
    grid = np.linspace(-6, 6, 400)
    found = density(values, grid)
    assert float(found.sum() * (grid[1] - grid[0])) == pytest.approx(1.0, abs=1e-3)
    assert float(np.abs(found - np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi)).max()) < 0.03
    assert not density(torch.zeros(5), grid).any()


def test_a_distance_is_a_shift_and_forgets_the_order() -> None:
    values = torch.randn(100, generator=torch.Generator().manual_seed(0))
    assert distance(values, values.flip(0) + 0.5) == pytest.approx(0.5, rel=1e-5)
    assert distance(values, values.flip(0)) == 0.0
