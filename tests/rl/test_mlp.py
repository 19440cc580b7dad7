import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from polyrhythm.policies.rlp.network import SLOPE
from polyrhythm.rl.mlp import MLP

WIDTHS = (5, 7, 4, 3)


def mlp(seed: int = 0) -> MLP:
    return MLP(WIDTHS, torch.Generator().manual_seed(seed))


def module_of(parameters: Tensor) -> nn.Module:
    module = nn.Sequential(nn.Linear(5, 7), nn.LeakyReLU(SLOPE), nn.Linear(7, 4), nn.LeakyReLU(SLOPE), nn.Linear(4, 3))
    vector_to_parameters(parameters, module.parameters())
    return module


def test_the_gradient_is_that_of_autograd() -> None:
    generator = torch.Generator().manual_seed(1)
    inputs, goals = torch.randn(6, 5, generator=generator), torch.randn(6, generator=generator)
    outputs = torch.tensor([0, 1, 2, 0, 0, 1])
    ours = mlp()
    module = module_of(torch.from_numpy(ours.parameters.copy()))
    torch.testing.assert_close(torch.from_numpy(ours(inputs.numpy())), module(inputs))
    loss = (module(inputs).gather(1, outputs.unsqueeze(1)).squeeze(1) - goals).square().mean()
    theirs = parameters_to_vector(torch.autograd.grad(loss, list(module.parameters())))
    value, gradient = ours.gradient(inputs.numpy(), outputs.numpy(), goals.numpy())
    torch.testing.assert_close(torch.from_numpy(gradient), theirs)
    torch.testing.assert_close(torch.tensor(value), loss.detach())


def test_in_plain_python_it_is_the_same() -> None:
    ours, other = mlp(), mlp(seed=2)
    x = np.random.default_rng(3).normal(size=5).astype(np.float32)
    assert ours.plain().values(x.tolist()) == pytest.approx(ours(x).tolist(), abs=1e-6)
    assert ours.plain(other.parameters).values(x.tolist()) == pytest.approx(other(x).tolist(), abs=1e-6)
