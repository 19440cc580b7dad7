"""How a script has clipped the mean gradient in its last step, for a step that it leaves out."""

import gc
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad, clip_grad_norm_

from polyrhythm.runtime.collectives.attending.clipping import NAMES, ClipEar

ORIGINALS = {name: getattr(clip_grad, name) for name in NAMES}


@pytest.fixture
def ear(monkeypatch: pytest.MonkeyPatch) -> Iterator[ClipEar]:
    """One that listens, and is taken out again."""
    made = ClipEar()
    before = {name: getattr(clip_grad, name) for name in NAMES}
    made.listen()
    yield made
    for module in list(sys.modules.values()):
        for name, original in before.items():
            if vars(module).get(name) is not original and name in vars(module):
                setattr(module, name, original)


def parameters(*gradients: float) -> list[nn.Parameter]:
    made = [nn.Parameter(torch.zeros(1)) for _ in gradients]
    for parameter, gradient in zip(made, gradients, strict=True):
        parameter.grad = torch.tensor([gradient])
    return made


def clipped_again(ear: ClipEar, these: list[nn.Parameter]) -> list[float]:
    """What becomes of gradients of another step."""
    for parameter in these:
        parameter.grad = torch.tensor([-8.0])
    ear.repeat()
    return [round(parameter.grad.item(), 3) for parameter in these if parameter.grad is not None]


def test_it_is_clipped_as_in_the_step_before(ear: ClipEar) -> None:
    norm, value = parameters(3.0, 4.0), parameters(3.0)
    nn.utils.clip_grad_norm_((each for each in norm), 1.0)
    nn.utils.clip_grad_value_(value[0], clip_value=2.0)
    ear.own_steps += 1
    assert clipped_again(ear, norm + value) == pytest.approx([-0.707, -0.707, -2.0], abs=1e-3)


def test_what_is_clipped_in_some_steps_only_is_not_clipped_later(ear: ClipEar) -> None:
    these = parameters(3.0)
    nn.utils.clip_grad_norm_(these, 1.0)
    ear.own_steps += 2
    assert clipped_again(ear, these) == [-8.0]


@pytest.mark.parametrize("mean", [True, False])
def test_gradients_that_are_not_the_mean_yet_are_clipped_by_their_rank_alone(ear: ClipEar, mean: bool) -> None:
    exchange, these = SimpleNamespace(has_mean=mean), parameters(3.0)
    ear.exchange = lambda: exchange
    nn.utils.clip_grad_norm_(these, 1.0)
    ear.own_steps += 1
    assert clipped_again(ear, these) == [-1.0 if mean else -8.0]


def test_a_name_that_was_imported_before_is_heard(ear: ClipEar) -> None:
    script = ModuleType("script")
    script.clip_grad_norm_ = ORIGINALS["clip_grad_norm_"]  # type: ignore[attr-defined]
    assert clip_grad_norm_ is not ORIGINALS["clip_grad_norm_"], "this module's own"
    assert script.clip_grad_norm_ is ORIGINALS["clip_grad_norm_"], "one that is in no module that is imported"


def test_parameters_are_not_kept(ear: ClipEar) -> None:
    these = parameters(3.0)
    nn.utils.clip_grad_norm_(these, 1.0)
    these.clear()
    gc.collect()
    ear.repeat()


def test_a_graph_goes_on_through_it(ear: ClipEar) -> None:
    these = parameters(3.0)

    @torch.compile(backend="eager", fullgraph=True)
    def clip() -> torch.Tensor:
        return nn.utils.clip_grad_norm_(these, 1.0)

    assert clip().item() == 3.0
    assert these[0].grad is not None
    assert these[0].grad.item() == pytest.approx(1.0, abs=1e-5)
