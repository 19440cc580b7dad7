from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from polyrhythm.training.models import LanguageModel, cnn, mlp, resnet, seeded

BUILDERS: dict[str, tuple[Callable[[], nn.Module], torch.Tensor]] = {
    "mlp": (partial(mlp, 1, 28), torch.zeros(2, 1, 28, 28)),
    "cnn": (partial(cnn, 1, 8), torch.zeros(2, 1, 8, 8)),
    "resnet20": (partial(resnet, 3, 20), torch.zeros(2, 3, 32, 32)),
    "language": (partial(LanguageModel, 10), torch.zeros(2, 35, dtype=torch.int64)),
}


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize("name", BUILDERS)
def test_a_seed_makes_a_model_and_leaves_the_global_random_state(name: str) -> None:
    build, inputs = BUILDERS[name]
    before = torch.random.get_rng_state()
    first, again, other = (seeded(build, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.random.get_rng_state(), before)
    pairs = list(zip(first.parameters(), again.parameters(), other.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b, _ in pairs)
    assert not all(torch.equal(a, c) for a, _, c in pairs)
    assert first(inputs).shape[-1] == 10


def test_sizes_are_those_of_the_papers() -> None:
    assert parameters(mlp(1, 28)) == 784 * 64 + 64 + 64 * 10 + 10
    # He et al. 2016, table 6: 0.27 M and 0.46 M parameters.
    assert round(parameters(resnet(3, 20)) / 1e6, 2) == 0.27
    assert round(parameters(resnet(3, 32)) / 1e6, 2) == 0.46
    convolutions = [m for m in resnet(3, 32).modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) == 31


def test_a_language_model_does_not_look_ahead() -> None:
    model = seeded(partial(LanguageModel, 10), 0)
    tokens = torch.arange(20).view(1, 20) % 10
    changed = tokens.clone()
    changed[0, 12:] = 3
    with torch.no_grad():
        difference = (model(tokens) - model(changed)).abs().amax(-1)[0]
    assert difference[:12].max() < 1e-6
    assert difference[12] > 1e-3
