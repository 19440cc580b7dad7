"""What DistributedDataParallel becomes in an adapted script: the same object to look at, with an exchange that changes.

In synchronous mode a real DistributedDataParallel of torch on the group of the phase is behind it, otherwise the bare
module.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel
from torch.nn.parallel.scatter_gather import scatter_kwargs

from polyrhythm.runtime.script.notices import refuse

UNABLE = ("delay_all_reduce_named_params", "param_to_hook_all_reduce", "mixed_precision", "device_mesh")
"""Arguments of DistributedDataParallel that replace its exchange by something else."""


class Inner(DistributedDataParallel):
    """Torch's own; its class says that it is not to be adapted."""


class Lane:
    """The exchange behind a wrapper: on a group, or on none.

    Args:
        module: the script's.
        options: what the script gave DistributedDataParallel.
    """

    def __init__(self, module: nn.Module, options: dict[str, Any]) -> None:
        self.module, self.options = module, options
        self.hook: tuple[Any, ...] | None = None
        self.called: Callable[[bool], None] = lambda _: None
        """Told of every forward pass, and whether a step may follow it."""
        self.inner: Inner | None = None
        self.reducing = False
        self.scripted_sync = True
        """Whether the script's no_sync() counts; in a session it knows by itself which backward pass is the last."""

    def open(self, group: ProcessGroup, *, init_sync: bool = False) -> None:
        self.inner = Inner(self.module, process_group=group, init_sync=init_sync, **self.options)
        if self.hook is not None:
            self.inner.register_comm_hook(*self.hook)
        self.reducing = True

    def close(self) -> None:
        self.inner, self.reducing = None, False

    def run(self, wrapper: "ScriptDDP", inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        trains = torch.is_grad_enabled() and wrapper.training
        self.called(trains)
        if trains and self.inner is not None and self.reducing:
            if self.scripted_sync:
                self.inner.require_backward_grad_sync = wrapper.require_backward_grad_sync
            # Its __call__ would only look for hooks, which are the wrapper's.
            return self.inner.forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
        return self._alone(inputs, kwargs)

    def _alone(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        devices = self.options.get("device_ids")
        if devices:
            (inputs,), (kwargs,) = scatter_kwargs(inputs, kwargs, devices)
        return self.module(*inputs, **kwargs)


class ScriptDDP(DistributedDataParallel):
    """The script's wrapper. A copy of it, as for a moving average, is a wrapper without an exchange."""

    _lane: Lane | None

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self._lane is None:
            return self.module(*inputs, **kwargs)
        return self._lane.run(self, inputs, kwargs)

    def register_comm_hook(self, state: object, hook: Any) -> None:
        assert self._lane is not None, "a copy has no exchange"
        self._lane.hook = (state, hook)
        if self._lane.inner is not None:
            self._lane.inner.register_comm_hook(state, hook)

    @contextmanager
    def join(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        # Workers have equal numbers of steps in synchronous mode, and need not wait for one another otherwise.
        yield

    def join_hook(self, **kwargs: Any) -> Any:
        raise refuse("Join needs unequal numbers of steps in synchronous mode; use model.join(), or no join at all")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_lane": None, "process_group": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        nn.Module.__setstate__(self, state)  # type: ignore[no-untyped-call]


ScriptDDP.__name__ = ScriptDDP.__qualname__ = "DistributedDataParallel"


def become_wrapper(
    ddp: DistributedDataParallel, module: nn.Module, group: ProcessGroup, options: dict[str, Any]
) -> Lane:
    """Make a `ScriptDDP` of an object that its own constructor has not seen; the parameters become those of rank 0.

    Args:
        ddp: still empty.
        module: what the script wraps.
        group: of all ranks.
        options: the other arguments of DistributedDataParallel.
    """
    init_sync = options.pop("init_sync", True)
    lane = Lane(module, options)
    lane.open(group, init_sync=init_sync)
    inner = lane.inner
    assert inner is not None
    ddp.__class__ = ScriptDDP
    nn.Module.__init__(ddp)
    shown = {key: value for key, value in inner.__dict__.items() if is_plain(key, value)}
    ddp.__dict__.update(shown, process_group=group, _lane=lane)
    ddp.module = module
    return lane


def is_plain(name: str, value: object) -> bool:
    """Whether an attribute of torch's wrapper tells how it was made, and is no part of its machinery."""
    kinds = (bool, int, float, str, type(None), torch.device, list)
    return not name.startswith("_") and name != "training" and isinstance(value, kinds)
