"""A step of several optimizers of which nothing comes, though some of them have stepped."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyrhythm.runtime.script.training.joint_step import JointStep
from polyrhythm.runtime.worker.optimizers import JointOptimizer
from polyrhythm.runtime.worker.replica import ScriptReplica


class Exchange:
    """In synchronous mode, if `reduces`; as often as it may, it succeeds."""

    def __init__(self, reduces: bool, good: int) -> None:
        self.reduces, self.joint = reduces, False
        self.failure: str | None = None
        self._good = good

    def before_step(self, parameters: list[nn.Parameter]) -> None:
        self._good -= 1
        self.failure = "a member is gone" if self._good < 0 else None

    def attend_rest(self) -> list[torch.optim.Optimizer]:
        return []

    def finish_joint(self) -> None:
        """Nothing is to be seen here."""


class Worker:
    """Makes none of a step whose exchange has failed, as `SynchronousMode` does."""

    def __init__(self, exchange: Exchange, on_servers: bool = False) -> None:
        self._exchange, self.apart = exchange, False
        self._side = SimpleNamespace(on_servers=on_servers)
        self._context = SimpleNamespace(void=False, steering=SimpleNamespace(due=False, own=False))

    def before_step(self, samples: int) -> None:
        self._context.void = self._exchange.failure is not None

    def after_step(self, samples: int) -> None:
        """Nothing is to be seen here."""


def state_of(model: nn.Module, parts: list[torch.optim.Optimizer]) -> list[Tensor]:
    kept = [value for part in parts for state in part.state.values() for value in state.values()]
    return [each.detach().clone() for each in (*model.parameters(), *kept)]


@pytest.mark.parametrize("reduces", [True, False])
@pytest.mark.parametrize("begun", [0, 2])
@pytest.mark.parametrize("good", [0, 1, 2])
def test_who_has_stepped_before_the_failure_has_not(reduces: bool, begun: int, good: int) -> None:
    """Its samples are made again, so that it would have moved twice, and its momentum with it."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    parts: list[torch.optim.Optimizer] = [
        torch.optim.SGD(model[0].parameters(), lr=0.1, momentum=0.9),
        torch.optim.Adam(model[1].parameters(), lr=0.1),
    ]
    exchange: Any = Exchange(reduces, 2 * begun + good)
    worker: Any = Worker(exchange)
    joint = JointStep(ScriptReplica(model, JointOptimizer(parts)), worker, exchange)
    for number in range(begun + 1):
        before = state_of(model, parts)
        model(torch.ones(1, 2)).sum().backward()
        for part in parts:
            joint.before(part)
            part.step()
            joint.after()
        assert joint.finish(1)
        same = [torch.equal(*pair) for pair in zip(before, state_of(model, parts), strict=False)]
        voided = number == begun and good < 2
        assert all(same) and len(state_of(model, parts)) == len(before) if voided else not any(same[:2])
