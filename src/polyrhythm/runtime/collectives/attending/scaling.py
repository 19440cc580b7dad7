"""A script's GradScaler, of which nobody tells us but torch.

Gradients that are exchanged in a backward pass have its scale, so it must be the same for all members. Under other
policies the scaler of each worker goes its own way, and that of a newcomer begins as the script has made it.
A class that replaces `GradScaler.scale`, such as FSDP's `ShardedGradScaler`, is not heard.
"""

import functools
import gc
import math
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.amp import GradScaler
from torch.distributed.distributed_c10d import ReduceOp
from torch.optim import Optimizer

from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.ops import all_reduce

ScalerState: TypeAlias = tuple[float, int]
"""A scale, and the steps since it has changed."""


class ScalerEar:
    """Knows the GradScalers of the script, as soon as they have multiplied a loss.

    Attributes:
        tried: whether this process has made a step; then it has used what the others use.
    """

    def __init__(self) -> None:
        self._listens = self.tried = False
        self._heard = 0
        self._numbers = WeakKeyDictionary[GradScaler, int]()
        """In the order of their first use, which is the same on all ranks."""
        self._latest: Callable[[], GradScaler | None] = lambda: None
        self._of = WeakKeyDictionary[Optimizer, Callable[[], GradScaler | None]]()
        self._due = WeakKeyDictionary[GradScaler, ScalerState]()
        self._due_unused = deque[ScalerState]()

    def listen(self) -> None:
        """Once a process: scripts may use a scaler before a session and after it."""
        if self._listens:
            return
        self._listens = True
        original, looks = GradScaler.scale, GradScaler._unscale_grads_

        @functools.wraps(original)
        def scale(scaler: GradScaler, *args: Any, **kwargs: Any) -> Any:
            if scaler.is_enabled():
                self.hear(scaler)
            return original(scaler, *args, **kwargs)

        @functools.wraps(looks)
        def unscale_grads(scaler: GradScaler, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            self._of[optimizer] = weakref.ref(scaler)
            return looks(scaler, optimizer, *args, **kwargs)

        GradScaler.scale = scale  # type: ignore[method-assign, assignment]
        GradScaler._unscale_grads_ = unscale_grads  # type: ignore[method-assign, assignment]

    def hear(self, scaler: GradScaler) -> None:
        """It multiplies a loss, or takes the place of one that would."""
        if scaler not in self._numbers:
            self._numbers[scaler] = self._heard
            self._heard += 1
            due = self._due_unused.popleft() if self._due_unused else None
        else:
            due = self._due.pop(scaler, None)
        if due is not None:
            put(scaler, *due)
        self._latest = weakref.ref(scaler)

    @property
    def _used(self) -> list[GradScaler]:
        return sorted(self._numbers, key=self._numbers.__getitem__)

    @property
    def states(self) -> list[ScalerState]:
        """Of those that were used, in order."""
        return [state_of(scaler) for scaler in self._used]

    def expect(self, states: Sequence[ScalerState]) -> None:
        """Each scaler has this when it multiplies the next loss: before that the script may still update it."""
        used = self._used
        self._due = WeakKeyDictionary(zip(used, states, strict=False))
        self._due_unused = deque(states[len(used) :])

    def of_others(self, optimizer: Optimizer | None = None) -> GradScaler | None:
        """The one with which the others make the step that this rank leaves out, that of `optimizer` if given."""
        own = self._of.get(optimizer, self._latest) if optimizer is not None else self._latest
        scaler = own() or (None if self.tried and not self._heard else unused_scaler())
        if scaler is not None:
            self.hear(scaler)
        return scaler


EAR = ScalerEar()


def unused_scaler() -> GradScaler | None:
    """One that this process has made."""
    found = (each for each in gc.get_objects() if issubclass(type(each), GradScaler))
    return next((scaler for scaler in found if scaler.is_enabled()), None)


def state_of(scaler: GradScaler) -> ScalerState:
    state = scaler.state_dict()
    return state["scale"], state["_growth_tracker"]


def put(scaler: GradScaler, scale: float, steps: int) -> None:
    scaler.load_state_dict(scaler.state_dict() | {"scale": scale, "_growth_tracker": steps})


def agree_on_scales(generation: Generation, has_say: bool = True) -> None:
    """Give all members the least of what their scalers have; a member that has used fewer of them has no say.

    Args:
        generation: who takes part.
        has_say: whether this member's scalers have made the job's steps.

    Raises:
        GroupError: when a member is lost.
    """
    own = EAR.states if has_say else []
    most = torch.tensor([len(own)])
    all_reduce(generation, most, ReduceOp.MAX)
    if not most:
        return
    least = torch.full((int(most), 2), math.inf, dtype=torch.float64)
    if own:
        least[: len(own)] = torch.tensor(own, dtype=torch.float64)
    all_reduce(generation, least, ReduceOp.MIN)
    EAR.expect([(scale, int(steps)) for scale, steps in least.tolist()])


def unscale(scaler: GradScaler | None, parameters: Iterable[nn.Parameter]) -> bool:
    """Do to gradients what the GradScaler of the others does; whether they are finite, so that it lets them step."""
    if scaler is None:
        return True
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    factor = torch.tensor(scaler.get_scale(), dtype=torch.float64).reciprocal().float()
    for gradient in gradients:
        gradient.mul_(factor.to(gradient.device))
    return all(bool(gradient.isfinite().all()) for gradient in gradients)


def update(scaler: GradScaler | None, finite: bool) -> None:
    """What `GradScaler.update` does on the others, after a step that this rank has not made."""
    if scaler is None:
        return
    scale, steps = state_of(scaler)
    if not finite:
        put(scaler, scale * scaler.get_backoff_factor(), 0)
    elif steps + 1 < scaler.get_growth_interval():
        put(scaler, scale, steps + 1)
    else:
        grown = scale * scaler.get_growth_factor()
        put(scaler, grown if grown <= torch.finfo(torch.float32).max else scale, 0)


def follow(parameters: Iterable[nn.Parameter]) -> bool:
    """Treat gradients, and this rank's GradScaler, as the others do; whether they make the step."""
    scaler = EAR.of_others()
    finite = unscale(scaler, parameters)
    update(scaler, finite)
    return finite
