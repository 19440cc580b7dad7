"""One step of the job that several optimizers of a script make."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from polyrhythm.runtime.collectives.attending.clipping import CLIPS
from polyrhythm.runtime.script.notices import refuse
from polyrhythm.runtime.worker.optimizers import parts_of
from polyrhythm.runtime.worker.replica import ScriptReplica
from polyrhythm.runtime.worker.worker import Worker


class StepExchanges(Protocol):
    """What is exchanged before an optimizer steps; see `ScriptExchange`."""

    joint: bool
    reduces: bool

    @property
    def failure(self) -> str | None: ...

    def before_step(self, parameters: Sequence[nn.Parameter]) -> None: ...

    def attend_rest(self) -> Sequence[Optimizer]: ...

    def finish_joint(self) -> None: ...


class JointStep:
    """One step of the job that several optimizers of the script make, one after the other.

    Each steps when the script wants it: in synchronous mode with the mean gradient, otherwise with the worker's own. If
    servers make the steps, those here are a look ahead, by which a GAN's generator meets the discriminator's next
    parameters; the gradients go out together at the end, and the parameters come from the servers.

    Args:
        replica: the script's models and optimizers.
        worker: makes the job's steps.
        exchange: of gradients.
    """

    def __init__(self, replica: ScriptReplica, worker: Worker, exchange: StepExchanges) -> None:
        self._replica, self._worker, self._exchange = replica, worker, exchange
        exchange.joint = True
        self._gradients: dict[nn.Parameter, Tensor | None] = {}
        self._before: dict[nn.Parameter, Tensor] = {}
        self._states: dict[nn.Parameter, tuple[Optimizer, Any]] = {}
        self._hidden: dict[nn.Parameter, Tensor | None] = {}
        self._stepped: list[Optimizer] = []
        self._usual: set[frozenset[Optimizer]] = set()
        """Those that have made a step of the job together."""

    def before(self, optimizer: Optimizer) -> None:
        if optimizer in self._stepped:
            raise refuse("a second step of this optimizer with one mini-batch; make one step for each")
        self._stepped.append(optimizer)
        parameters = trained_by(optimizer)
        self._exchange.before_step(parameters)
        if not self._exchange.reduces:
            self._gradients |= {p: None if p.grad is None else p.grad.clone() for p in parameters}
        elif self._exchange.failure is not None:
            self._hidden = {p: p.grad for p in parameters}
            give(dict.fromkeys(parameters))
        self._keep(optimizer, parameters)
        self._steer(True)

    def has_made(self, optimizer: Optimizer | None) -> bool:
        """Whether this optimizer, or every one, has made its part."""
        wanted = parts_of(self._replica.optimizer) if optimizer is None else (optimizer,)
        return all(part in self._stepped for part in wanted)

    @property
    def is_usual(self) -> bool:
        """Whether the same optimizers have made a whole step before, so that no other one need follow."""
        return frozenset(self._stepped) in self._usual

    def after(self) -> None:
        self._steer(False)
        give(self._hidden)
        self._hidden = {}

    def finish(self, samples: int) -> bool:
        """No further step is made with this mini-batch; whether any was."""
        if not self._stepped:
            return False
        self._usual.add(frozenset(self._stepped))
        own = {p: p.grad for p in self._replica.parameters}
        if self._exchange.reduces:
            self._step_along(self._exchange.attend_rest())
        else:
            give({p: self._gradients.get(p) for p in own})
        groups = [part for part in parts_of(self._replica.optimizer) for _ in part.param_groups]
        self._replica.idle = frozenset(n for n, part in enumerate(groups) if part not in self._stepped)
        if self._worker._side.on_servers:
            self._go_back()
        self._exchange.finish_joint()
        self._worker.before_step(samples)
        if self._worker._context.void:
            self._go_back()
            self._take_back_states()
        self._worker.after_step(samples)
        give(own)
        self.drop()
        return True

    def drop(self) -> None:
        """Nothing comes of what was stepped since the last mini-batch."""
        self._replica.idle = frozenset()
        for kept in self._gradients, self._before, self._states, self._stepped:
            kept.clear()

    def _step_along(self, parts: Sequence[Optimizer]) -> None:
        """Others have stepped with these, too."""
        if parts:
            CLIPS.repeat()
        for part in parts:
            self._stepped.append(part)
            self._keep(part, trained_by(part))
            self._steer(True)
            self._replica.step([part])
            self._steer(False)

    def _keep(self, optimizer: Optimizer, parameters: Sequence[nn.Parameter]) -> None:
        """What this optimizer is about to change: a later exchange of the step may fail, and then nothing comes of it.

        On servers the state here is that of the look ahead only.
        """
        self._before |= {p: p.detach().clone() for p in parameters}
        if not self._worker._side.on_servers:
            self._states |= {p: (optimizer, copy.deepcopy(optimizer.state.get(p))) for p in parameters}

    def _steer(self, begins: bool) -> None:
        """One optimizer makes its part of the step with the rate that the policy wants."""
        steering = self._worker._context.steering
        if begins and steering.due:
            steering.begin()
        elif not begins and steering.own:
            steering.end()

    @torch.no_grad()
    def _go_back(self) -> None:
        for parameter, value in self._before.items():
            parameter.copy_(value)

    def _take_back_states(self) -> None:
        for parameter, (optimizer, state) in self._states.items():
            if state is None:
                optimizer.state.pop(parameter, None)
            else:
                optimizer.state[parameter] = state


def trained_by(optimizer: Optimizer) -> list[nn.Parameter]:
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def give(gradients: Mapping[nn.Parameter, Tensor | None]) -> None:
    for parameter, gradient in gradients.items():
        parameter.grad = gradient
