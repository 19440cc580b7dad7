"""What the coordinator hears of losses, and how often."""

from types import SimpleNamespace
from typing import cast

import pytest
import torch
from torch import nn, optim

from polyrhythm.runtime.wire.protocol import Diverged, NonFiniteLoss, Phase, ToCoordinator
from polyrhythm.runtime.worker.context import Tally, WorkerContext
from polyrhythm.runtime.worker.losses.guard import Guard
from polyrhythm.runtime.worker.losses.heard import Losses
from polyrhythm.runtime.worker.losses.reports import SHOWN_S, LossReports
from polyrhythm.runtime.worker.replica import ScriptReplica
from polyrhythm.training.divergence import OnDivergence


class Heard(Losses):
    """Losses without a script."""

    def listen(self, wanted: bool, means: bool = False) -> None:
        self.listens = wanted

    def say(self, *values: float) -> None:
        self._heard.extend(torch.tensor(value) for value in values)


class Side:
    """A worker in the third phase of its job, about to make its first step."""

    def __init__(self, on_divergence: OnDivergence, needed: bool = False, hears: bool = False) -> None:
        self.sent: list[ToCoordinator] = []
        self.losses = Heard()
        phase = Phase(3, "bsp", (0,), 0, (), "keep", 0, 4, 8, 0, 8, None, hears=hears)
        model = nn.Linear(1, 1)
        guard = Guard(ScriptReplica(model, optim.SGD(model.parameters(), lr=1.0)), on_divergence)
        client = SimpleNamespace(send=self.sent.append)
        exchange = SimpleNamespace(common=lambda loss: loss)
        context = SimpleNamespace(client=client, exchange=exchange, losses=self.losses, tally=Tally(), phase=phase)
        self.reports = LossReports(cast(WorkerContext, context), guard)
        self.reports.begin(phase, needed, means=False)

    def hear(self, now_s: float, *values: float) -> float | None:
        self.losses.say(*values)
        return self.reports.hear(now_s)


@pytest.mark.parametrize(("needed", "hears"), [(True, False), (False, True)])
def test_a_loss_that_somebody_needs_is_heard_in_every_step(needed: bool, hears: bool) -> None:
    side = Side("ignore", needed, hears)
    assert [side.hear(0.0, 1.0, 3.0), side.hear(0.0, 4.0), side.hear(0.0)] == [2.0, 4.0, None]


def test_one_that_is_only_shown_is_heard_now_and_then() -> None:
    side = Side("ignore")
    assert [side.hear(at_s, loss) for at_s, loss in ((0.0, 1.0), (SHOWN_S / 2, 2.0), (SHOWN_S, 3.0))] == [
        1.0,
        None,
        3.0,
    ]


@pytest.mark.parametrize("needed", [True, False])
def test_one_that_is_not_finite_is_said_once(needed: bool) -> None:
    side = Side("ignore", needed)
    for loss in (1.0, float("inf"), float("inf")):
        side.hear(0.0, loss)
    assert side.sent == [NonFiniteLoss(1, float("inf"))]


def test_a_divergence_is_said_once_with_its_phase() -> None:
    side = Side("end")
    for _ in range(2):
        side.hear(0.0, float("nan"))
    assert side.sent == [Diverged(3, "is nan", rollback=False)]
