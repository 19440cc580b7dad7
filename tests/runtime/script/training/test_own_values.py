"""Values of collectives inside the loop of workers that make steps of their own."""

import pytest
import torch
from torch import nn

from polyrhythm.errors import RefusalError
from polyrhythm.runtime.script.training.objections import Objections
from polyrhythm.runtime.script.training.own_values import OwnValues


def reduction(tensor: torch.Tensor) -> tuple[str, list[torch.Tensor], str, list[nn.Parameter], Objections]:
    return "allreduce", [tensor], "under asp", [], Objections(lambda: False, lambda: "")


def test_what_may_yet_be_refused_is_said_after_the_step_or_the_loop(capsys: pytest.CaptureFixture[str]) -> None:
    values = OwnValues()
    values.check(*reduction(torch.tensor(0.5)))
    said = [capsys.readouterr().err]
    values.left_loop()
    said.append(capsys.readouterr().err)
    assert values.followed is not None
    values.stepped(values.followed)
    said.append(capsys.readouterr().err)
    assert ["gives each worker its own value" in line for line in said] == [False, True, False]
    assert values.followed is None


def test_the_line_that_is_refused_is_that_of_what_a_gradient_depends_on(capsys: pytest.CaptureFixture[str]) -> None:
    values, model = OwnValues(), nn.Linear(1, 1)
    shown, factor = torch.tensor([0.5]), torch.tensor([2.0])
    values.check(*reduction(shown))
    values.check(*reduction(factor))
    followed = values.followed
    assert followed is not None
    (shown * 3).sum()
    loss = (model(torch.ones(1)) * factor).sum()
    with pytest.raises(RefusalError, match=r"a gradient depends on it; count in whole numbers \(\.long\(\)\), "):
        followed.backward([loss])
    values.stepped(followed)
