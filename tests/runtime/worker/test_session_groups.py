"""Models with parameters without dimensions and with frozen groups, as torch trains them, through switches too."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import polyrhythm
from tests.runtime.jobs import Numbered, flat, make_model, run_job, step

SAMPLES = 32
EPOCHS = 2
SGD = {"kind": "SGD", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
ADAM = {"kind": "AdamW", "lr": 0.01, "eps": 1e-3}
"""With its usual epsilon a gradient that is nothing but rounding moves a parameter as far as any other."""

State = dict[str, Any]


class Scaled(nn.Module):
    """A small network, and a scale and a shift of its outputs."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.net = make_model(seed)
        self.scale, self.shift = nn.Parameter(torch.tensor(1.0 + seed)), nn.Parameter(torch.tensor(0.0))

    def forward(self, inputs: Tensor) -> Tensor:
        scaled: Tensor = self.net(inputs) * self.scale + self.shift
        return scaled


def scaled(seed: int, apart: bool, kind: str, **options: Any) -> tuple[nn.Module, Optimizer]:
    model = Scaled(seed)
    groups = [list(model.net.parameters()), [model.scale, model.shift]]
    split = groups if apart else [[p for group in groups for p in group]]
    return model, getattr(torch.optim, kind)([{"params": group} for group in split], **options)


def frozen(seed: int, first: bool, kind: str, **options: Any) -> tuple[nn.Module, Optimizer]:
    """Two layers, one frozen, each with a rate of its own; the frozen one is the first group or the last."""
    model = make_model(seed)
    still, _, trained = model.children()
    still.load_state_dict(next(make_model().children()).state_dict())
    still.requires_grad_(False)
    groups = [{"params": list(still.parameters()), "lr": 0.5}, {"params": list(trained.parameters()), "lr": 0.05}]
    return model, getattr(torch.optim, kind)(groups if first else groups[::-1], **options)


MODELS: dict[str, Callable[..., tuple[nn.Module, Optimizer]]] = {"scaled": scaled, "frozen": frozen}


def train(
    rank: int, which: str, at: bool, options: dict[str, Any], batch: int, alternates: bool
) -> tuple[Tensor, State]:
    """Parameters at the end, and the optimizer's state; if it `alternates`, other policies have their turns."""
    model, optimizer = MODELS[which](rank, at, **options)
    with polyrhythm.session(model, optimizer, epochs=EPOCHS) as session:
        for _ in range(EPOCHS):
            for number, (x, y, _) in enumerate(session.loader(Numbered(SAMPLES), batch, shuffle=False)):
                step(model, optimizer, x, y)
                if rank == 0 and alternates and number in (1, 3, 5):
                    session.switch({1: "asp", 3: "local:2", 5: "bsp"}[number])
        return flat(model), copy.deepcopy(optimizer.state_dict())


def train_alone(which: str, at: bool, options: dict[str, Any], batch: int) -> tuple[Tensor, State]:
    (model, optimizer), data = MODELS[which](0, at, **options), Numbered(SAMPLES)
    for _ in range(EPOCHS):
        for start in range(0, SAMPLES, batch):
            step(model, optimizer, data.x[start : start + batch], data.y[start : start + batch])
    return flat(model), optimizer.state_dict()


def assert_close(found: tuple[Tensor, State], expected: tuple[Tensor, State], rtol: float, atol: float) -> None:
    torch.testing.assert_close(found[0], expected[0], rtol=rtol, atol=atol)
    torch.testing.assert_close(found[1]["state"], expected[1]["state"], rtol=rtol, atol=atol)


@pytest.mark.parametrize("options", [SGD, ADAM], ids=["sgd", "adamw"])
@pytest.mark.parametrize("which", MODELS)
@pytest.mark.parametrize("at", [True, False])
def test_one_worker_trains_as_torch_through_switches(which: str, at: bool, options: dict[str, Any]) -> None:
    (found,) = run_job(train, 1, which, at, options, 4, True)
    exact = options is SGD  # fused AdamW, as on the servers, rounds otherwise
    rtol, atol = (0.0, 0.0) if exact else (1e-4, 1e-6)
    assert_close(found, train_alone(which, at, options, 4), rtol, atol)


@pytest.mark.parametrize("policy", ["bsp", "asp"])
@pytest.mark.parametrize("which", MODELS)
def test_one_worker_has_torchs_bits(which: str, policy: str) -> None:
    (found,) = run_job(train, 1, which, True, SGD, 4, False, policy=policy)
    assert_close(found, train_alone(which, True, SGD, 4), rtol=0.0, atol=0.0)


@pytest.mark.parametrize("which", MODELS)
def test_two_in_step_are_one_with_twice_the_batch(which: str) -> None:
    for found in run_job(train, 2, which, True, SGD, 4, False, policy="bsp"):
        assert_close(found, train_alone(which, True, SGD, 8), rtol=1e-4, atol=1e-6)


def thaw(rank: int, how: str) -> None:
    """Train a layer from the second epoch on."""
    model = make_model(rank)
    still, *_, trained = model.children()
    still.requires_grad_(False)
    groups = [{"params": list(trained.parameters())}]
    optimizer = torch.optim.SGD(groups + [{"params": list(still.parameters())}] * (how != "added"), lr=0.1)
    with polyrhythm.session(model, optimizer) as session:
        for _ in range(1 if how == "within" else EPOCHS):
            for x, y, _ in session.loader(Numbered(SAMPLES), 4):
                step(model, optimizer, x, y)
                still.requires_grad_(how == "within")
            still.requires_grad_(True)
            if how == "added":
                optimizer.add_param_group({"params": list(still.parameters())})


@pytest.mark.parametrize("how", ["thawed", "within", "added"])
@pytest.mark.parametrize("policy", ["bsp", "asp", "local:4"])
def test_what_is_to_train_only_later_is_refused(policy: str, how: str) -> None:
    """Each rank trained it by itself, without a word."""
    with pytest.raises(
        AssertionError, match=r"UsageError: 0\.weight is to train, but it did not when the session began"
    ):
        run_job(thaw, 2, how, policy=policy)


@pytest.mark.parametrize("apart", [True, False])
def test_scalars_are_cut_over_two_servers(apart: bool) -> None:
    (found,) = run_job(train, 1, "scaled", apart, SGD, 4, True, shards=2)
    assert_close(found, train_alone("scaled", apart, SGD, 4), rtol=1e-4, atol=1e-6)
