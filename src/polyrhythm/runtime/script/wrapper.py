"""What DistributedDataParallel becomes in an adapted script: the same object to look at, with an exchange that changes.

In synchronous mode a real DistributedDataParallel of torch on the group of the phase is behind it, otherwise the bare
module.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.distributed import ProcessGroup
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.nn.parallel.scatter_gather import scatter_kwargs

from polyrhythm.errors import GroupError
from polyrhythm.runtime.collectives.attending.attendance import BACKWARD, Attended, agree_on, reduce_next, trained
from polyrhythm.runtime.collectives.ops import mean_gradients
from polyrhythm.runtime.collectives.switchable_group import SwitchGroup
from polyrhythm.runtime.script.notices import refuse, script_line

UNABLE = ("delay_all_reduce_named_params", "param_to_hook_all_reduce", "mixed_precision", "device_mesh")
"""Arguments of DistributedDataParallel that replace its exchange by something else."""


MACHINERY = ("reducer", "logger")
"""Attributes that stand for torch's exchange."""

OURS = ("process_group", "passes", "_made_for", "module")
"""Attributes of `Inner` that torch's own has not, or as another thing."""


class NoMachinery:
    """In the place of torch's machinery while nothing is exchanged: takes every call, and does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


class Inner(Attended):
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
        self.called: Callable[[bool, Any], None] = lambda *_: None
        """Told of every forward pass, whether a step may follow it, and of its inputs."""
        self.returned: Callable[[], None] = lambda: None
        """Told of its end."""
        self.inner: Inner | None = None
        self._spare: Inner | None = None
        """That of the phase before, until the next one."""
        self.number = 0
        """Of the exchange: the same on all ranks that have made it together, and on no others."""
        self.kept: dict[str, Any] = {}
        """What torch's own has said of itself, as it was made."""
        self.reducing = self.inside = False
        """Whether passes are exchanged, and whether a forward pass is under way."""
        self.last = True
        """Whether the next backward pass is the last one before a step, as far as the session knows; then the script's
        no_sync() decides.
        """
        self.evaluates = False
        """Whether the last forward pass that a gradient may come of was in evaluation mode; its backward pass exchanges
        nothing by itself.
        """
        self.late = False
        """Whether the gradients of such a pass were the last that were exchanged."""
        self.joined = ""
        """Where the script has begun the `join()` that it is inside."""
        self.shared = True
        """Whether buffers are those that all ranks got at the end of their epoch, or of the last evaluation."""

    def open(self, group: ProcessGroup, *, init_sync: bool = False) -> None:
        """Exchange on this group, in the buckets of before if all its members have them; all of them call this."""
        assert isinstance(group, SwitchGroup), "it exchanges on a group of ours"
        spare, self._spare = self._spare, None
        if spare is not None and not spare.fits:
            spare = None
        same, number = agree_on(group, 2 * self.number + spare.state if spare is not None else 0)
        if spare is not None and same:
            spare.move(group)
            self.inner = spare
        else:
            spare = None  # before the next one has buckets as well
            self.inner, self.number = self._make(group, init_sync), number
        self.reducing = True

    def _make(self, group: SwitchGroup, init_sync: bool) -> Inner:
        made = Inner(self.module, process_group=group, init_sync=init_sync, **self.options)
        if self.hook is not None:
            made.register_comm_hook(*self.hook)
        return made

    def close(self) -> None:
        """Exchange nothing until it is opened again."""
        if self.inner is not None:
            group = self.inner.process_group
            failed = isinstance(group, SwitchGroup) and group.failure is not None
            self._spare = None if failed else self.inner
        self.inner, self.reducing = None, False

    def forget_buckets(self) -> None:
        """What comes next lays them out for itself."""
        self._spare = None

    @property
    def is_unreduced(self) -> bool:
        """Whether a pass was in evaluation mode, and torch's own has heard of none of the step."""
        return self.inner is not None and self.evaluates and BACKWARD not in self.inner.passes.played

    def reduce_rest(self) -> None:
        """Exchange the gradients that such a pass has not, before a step.

        Raises:
            GroupError: when a member is lost; the gradients are unchanged then.
        """
        group = self.inner.process_group if self.inner is not None else None
        if isinstance(group, SwitchGroup) and group.generation is not None:
            mean_gradients(group.generation, trained(self.module))
        self.evaluates, self.late = False, True  # a GradScaler has looked; the step has them

    def attribute(self, name: str) -> Any:
        """What torch's own wrapper has under this name.

        Raises:
            AttributeError: if it has nothing.
        """
        if self.inner is not None:
            return getattr(self.inner, name)
        if name in MACHINERY:
            return NoMachinery()
        if name not in self.kept:
            raise AttributeError(f"'DistributedDataParallel' object has no attribute {name!r}")
        return self.kept[name]

    def run(self, wrapper: "ScriptDDP", inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        learns = torch.is_grad_enabled()
        trains = learns and (wrapper.training or self.module.training)  # Lightning sets the latter
        if learns:
            self.evaluates = not trains and wrapper.require_backward_grad_sync
        self.called(trains, (inputs, kwargs))
        self.inside = True
        try:
            made = self._pass(trains, wrapper, inputs, kwargs)
        finally:
            self.inside = False
        self.returned()
        return made

    def _pass(self, trains: bool, wrapper: "ScriptDDP", inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if trains and self.inner is not None and self.reducing:
            self.follow(wrapper)
            self.shared = self.late = False
            # Its __call__ would only look for hooks, which are the wrapper's.
            return self.inner.forward(*inputs, **kwargs)
        if not self.shared:
            self._share_buffers()
        return self._alone(inputs, kwargs)

    def _share_buffers(self) -> None:
        """Within a loop torch's own evaluates with the first rank's buffers, and then trains on without another look.

        At the end of an epoch all have them, so that a rank may evaluate by itself.
        """
        inner = self.inner
        group = inner.process_group if inner is not None and self.reducing else None
        if inner is None or not isinstance(group, SwitchGroup) or group.failure is not None:
            return
        self.shared = True
        if inner._check_sync_bufs_pre_fwd():  # type: ignore[no-untyped-call]
            inner._sync_buffers()  # type: ignore[no-untyped-call]
        inner.require_forward_param_sync = False

    def follow(self, wrapper: "ScriptDDP") -> None:
        """Exchange what comes of the pass under way, unless the script does without; it may say so within the pass."""
        if self.inside and self.inner is not None:
            reduce_next(self.inner, self.last and wrapper.require_backward_grad_sync)

    def _alone(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        devices = self.options.get("device_ids")
        if devices:
            (inputs,), (kwargs,) = scatter_kwargs(inputs, kwargs, devices)
        return self.module(*inputs, **kwargs)


class ScriptDDP(TorchDDP):
    """What torch's class is to a wrapper of the script's, which stays an object of that class: its methods go there.

    A copy of one, as for a moving average, is a wrapper without an exchange.
    """

    _lane: Lane | None

    @property
    def require_backward_grad_sync(self) -> bool:
        return self.__dict__["require_backward_grad_sync"]  # type: ignore[no-any-return]

    @require_backward_grad_sync.setter
    def require_backward_grad_sync(self, exchanges: bool) -> None:
        self.__dict__["require_backward_grad_sync"] = exchanges
        if (lane := self.__dict__.get("_lane")) is not None:
            lane.follow(self)

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        if self._lane is None:
            return self.module(*inputs, **kwargs)
        return self._lane.run(self, inputs, kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return nn.Module.__getattr__(self, name)
        except AttributeError:
            if (lane := self.__dict__.get("_lane")) is None:
                raise
            return lane.attribute(name)

    def _get_ddp_logging_data(self) -> dict[str, Any]:
        lane = self._lane
        if lane is None or lane.inner is None:
            return {}
        return lane.inner._get_ddp_logging_data()  # type: ignore[no-any-return, no-untyped-call]

    def _set_static_graph(self) -> None:
        assert self._lane is not None, "a copy has no exchange"
        self._lane.options["static_graph"] = self.static_graph = True
        self._lane.forget_buckets()
        if self._lane.inner is not None:
            self._lane.inner._set_static_graph()  # type: ignore[no-untyped-call]

    def _register_builtin_comm_hook(self, comm_hook_type: Any) -> None:
        raise refuse("a built-in communication hook replaces the exchange; use register_comm_hook, or --compress")

    def _register_fused_optim(self, *args: Any, **kwargs: Any) -> None:
        raise refuse("an optimizer that steps within the backward pass leaves a policy no exchange; call step() after")

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compile what is wrapped: the exchange changes, and Python's own is no part of a graph."""
        self.module.compile(*args, **kwargs)

    def register_comm_hook(self, state: object, hook: Any) -> None:
        assert self._lane is not None, "a copy has no exchange"
        self._lane.hook = (state, hook)
        self._lane.forget_buckets()
        if self._lane.inner is not None:
            self._lane.inner.register_comm_hook(state, hook)

    @contextmanager
    def join(self, *args: Any, **kwargs: Any) -> Iterator[None]:
        # Workers whose data the job deals out have equal numbers of steps in synchronous mode; others are looked at.
        lane = self._lane or Lane(self.module, {})
        lane.joined = script_line()
        try:
            yield
        finally:
            lane.joined = ""

    def join_hook(self, **kwargs: Any) -> Any:
        raise refuse("Join needs unequal numbers of steps in synchronous mode; use model.join(), or no join at all")

    def __getstate__(self) -> dict[str, Any]:
        """All that torch's own `__setstate__` needs, where a file is read without us."""
        kept = self._lane.kept if self._lane is not None else {}
        state = {**kept, **self.__dict__, "_lane": None}
        del state["process_group"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        nn.Module.__setstate__(self, state)  # type: ignore[no-untyped-call]
        self.__dict__["process_group"] = None


def is_wrapper(module: object) -> TypeGuard[ScriptDDP]:
    """Whether it is the script's, or a copy of one, and not torch's own."""
    return isinstance(module, TorchDDP) and "_lane" in module.__dict__


def become_wrapper(ddp: TorchDDP, module: nn.Module, group: ProcessGroup, options: dict[str, Any]) -> Lane:
    """Make a wrapper of an object that torch's constructor has not seen; the parameters become those of rank 0.

    Args:
        ddp: still empty.
        module: what the script wraps.
        group: of all ranks.
        options: the other arguments of DistributedDataParallel.
    """
    init_sync = options.pop("init_sync", True)
    lane = Lane(module, options)
    with told_of_losses(group):
        lane.open(group, init_sync=init_sync)
    inner = lane.inner
    assert inner is not None
    nn.Module.__init__(ddp)
    shown = {key: value for key, value in inner.__dict__.items() if is_plain(key, value)}
    ddp.__dict__.update(shown, process_group=group, _lane=lane)
    own = {*vars(nn.Module()), *MACHINERY, *OURS}
    lane.kept = {key: value for key, value in inner.__dict__.items() if key not in own}
    ddp.module = module
    return lane


@contextmanager
def told_of_losses(group: ProcessGroup) -> Iterator[None]:
    """Where a rank is lost, torch compares with memory that nobody has written: what it says of that, or not, is void.

    Raises:
        GroupError: in its place.
    """
    try:
        yield
    finally:
        if isinstance(group, SwitchGroup) and group.failure is not None:
            raise GroupError(
                f"{script_line()}: DistributedDataParallel cannot be set up: another rank is lost ({group.failure})"
            )


def is_plain(name: str, value: object) -> bool:
    """Whether an attribute of torch's wrapper tells how it was made, and is no part of its machinery."""
    kinds = (bool, int, float, str, type(None), torch.device, list)
    return not name.startswith("_") and name != "training" and isinstance(value, kinds)
