"""The methods of torch that are replaced in place before a script starts."""

import functools
import math
import os
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import device_mesh, fsdp
from torch.distributed.tensor import parallel
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils.data import DataLoader

from polyrhythm.runtime.collectives.attending import ears
from polyrhythm.runtime.launch.rendezvous import GROUP, RUN, TORCHRUN_JOB, read_number
from polyrhythm.runtime.script.backward import patch_backward
from polyrhythm.runtime.script.data.alone import SharedStart, share_folders
from polyrhythm.runtime.script.data.file_calls import remember_files
from polyrhythm.runtime.script.group_patches import patch_groups, patch_store
from polyrhythm.runtime.script.notices import asked_by_us, refuse
from polyrhythm.runtime.script.script import AdaptedScript
from polyrhythm.runtime.script.training.warm_up import unwatched
from polyrhythm.runtime.script.wrapper import is_wrapper
from polyrhythm.runtime.script.wrapper_class import patch_wrapper
from polyrhythm.runtime.worker.loader import _Sampler
from polyrhythm.runtime.worker.session import Session
from polyrhythm.training.compiled import hide_from_compiler

IN_GROUPS = "; in a script with polyrhythm.session, fully_shard works within groups of processes (--group-size)"

CLASSES = {
    fsdp.FullyShardedDataParallel: f"shards parameters, but a policy needs whole replicas{IN_GROUPS}",
}
FUNCTIONS = {
    (fsdp, "fully_shard"): f"shards parameters, but a policy needs whole replicas{IN_GROUPS}",
    (parallel, "parallelize_module"): "splits the model, but a policy needs whole replicas",
}


def install(script: AdaptedScript) -> None:
    """Have `script` told of everything that it must know. There is no way back in this process."""
    start = SharedStart("-".join(os.environ.get(name, "") for name in (*TORCHRUN_JOB[:2], RUN)), script.rank)
    patch_session(script, start)
    patch_store()
    share_folders(lambda: not (script.distributed or script.dormant))
    if GROUP in os.environ:
        script.dormant = True
        patch_group(script)
        return
    if script.rank:
        remember_files(script.files, lambda: script.distributed or script.dormant)
    patch_wrapper(script)
    patch_compile(script)
    patch_loaders(script)
    patch_groups(script, start)
    patch_sight(script)
    patch_optimizers(script)
    patch_scaler(script)
    patch_backward(script)
    patch_save()
    patch_load(script)
    patch_unable(script)
    script.children.patch(lambda: not script.dormant)
    script.children.patch_spawn(lambda: not script.dormant and not asked_by_us())
    script.schedules.patch()


def patch_session(script: AdaptedScript, start: SharedStart) -> None:
    """A script that opens a session itself is left alone."""
    original = Session.__init__

    @functools.wraps(original)
    def init(self: Session, *args: Any, **kwargs: Any) -> None:
        if type(self) is Session:
            script.leave_alone()
            start.part()
        original(self, *args, **kwargs)

    Session.__init__ = init  # type: ignore[method-assign]


def patch_group(script: AdaptedScript) -> None:
    """In a group torch stays as it is, and so would a script without a session: each group would train alone."""

    def before_step(*_: Any) -> None:
        if not script.follows:
            raise refuse("--group-size is for scripts with polyrhythm.session, and this one steps without; open one")

    register_optimizer_step_pre_hook(before_step)
    made = within_group(device_mesh.init_device_mesh)
    for module in (device_mesh, dist):
        vars(module)["init_device_mesh"] = made


def within_group(init_device_mesh: Callable[..., Any]) -> Callable[..., Any]:
    """As torch's own, for a script that sees the processes of its group only."""

    @functools.wraps(init_device_mesh)
    def init(*args: Any, **kwargs: Any) -> Any:
        shape = next(each for each in (*args[1:], *kwargs.values()) if all(isinstance(size, int) for size in each))
        wanted, there = math.prod(shape), read_number("WORLD_SIZE", 1)
        if wanted > there:
            raise refuse(
                f"init_device_mesh of {wanted} processes, and a group has {there} (--group-size): the policy works "
                "between groups, in the place of replication; give the shape of one, and open a polyrhythm.session"
            )
        return init_device_mesh(*args, **kwargs)

    return init


def patch_compile(script: AdaptedScript) -> None:
    """A compiled DistributedDataParallel is one around a compiled module; it looks as torch's own does."""
    original = torch.compile

    @functools.wraps(original)
    def compile_(model: Any = None, **options: Any) -> Any:
        hide_from_compiler()
        script.compiled()
        if not is_wrapper(model):
            return original(model, **options)
        model.compile(**options)
        made: Any = original(model, backend="eager")
        made.forward = model.__call__
        return made

    torch.compile = compile_


def patch_loaders(script: AdaptedScript) -> None:
    init_original, script.loaders.read = DataLoader.__init__, DataLoader.__iter__

    @functools.wraps(init_original)
    def init(self: DataLoader[Any], *args: Any, **kwargs: Any) -> None:
        init_original(self, *args, **kwargs)
        if not isinstance(self.batch_sampler, _Sampler):
            script.loaders.made(self)

    @functools.wraps(script.loaders.read)
    def iterate(self: DataLoader[Any]) -> Any:
        return script.iterate(self)

    DataLoader.__init__ = init  # type: ignore[method-assign]
    DataLoader.__iter__ = iterate  # type: ignore[method-assign]


def patch_optimizers(script: AdaptedScript) -> None:
    original = Optimizer.__init__

    @functools.wraps(original)
    def init(self: Optimizer, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        script.made_optimizer(self)

    state_original = Optimizer.__setstate__

    @functools.wraps(state_original)
    def setstate(self: Optimizer, state: dict[str, Any]) -> None:
        state_original(self, state)
        script.copied_optimizer(self)

    Optimizer.__init__ = init  # type: ignore[method-assign]
    Optimizer.__setstate__ = setstate  # type: ignore[method-assign]
    register_optimizer_step_pre_hook(script.before_step)
    register_optimizer_step_post_hook(script.after_step)


def patch_scaler(script: AdaptedScript) -> None:
    """Where gradients are exchanged after the backward pass, they are before a GradScaler looks for infinities."""
    ears.listen()
    original = torch.amp.GradScaler._unscale_grads_

    @functools.wraps(original)
    def unscale(self: Any, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        script.before_scaler(optimizer)
        return original(self, optimizer, *args, **kwargs)

    torch.amp.GradScaler._unscale_grads_ = unscale  # type: ignore[method-assign]


def patch_save() -> None:
    original = torch.save

    @functools.wraps(original)
    def save(*args: Any, **kwargs: Any) -> None:
        with unwatched():
            original(*args, **kwargs)

    torch.save = save


def patch_load(script: AdaptedScript) -> None:
    original = nn.Module.load_state_dict

    @functools.wraps(original)
    def load(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if script.session is None or asked_by_us():
            script.loads |= not asked_by_us()
            return original(self, *args, **kwargs)
        with script.session.loaded.load(self):
            return original(self, *args, **kwargs)

    nn.Module.load_state_dict = load  # type: ignore[method-assign]
    state_original = nn.Module.state_dict

    @functools.wraps(state_original)
    def state_dict(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not args and kwargs.get("destination") is None:  # else a module asks one that is part of it
            script.asks_state()
        return state_original(self, *args, **kwargs)

    nn.Module.state_dict = state_dict  # type: ignore[method-assign]


def patch_sight(script: AdaptedScript) -> None:
    """A script for a single process does not see the group in which its workers meet.

    Libraries that saw it, such as ignite or torchmetrics, would take the script for one with ranks.
    """
    original = dist.is_initialized

    @functools.wraps(original)
    def is_initialized() -> bool:
        return original() and (script.distributed or script.dormant or asked_by_us())

    dist.is_initialized = is_initialized


def patch_unable(script: AdaptedScript) -> None:
    """Parts of torch that bring an exchange of their own: a script that uses one is refused where it does."""
    for kind, reason in CLASSES.items():
        kind.__init__ = guarded(script, kind.__init__, kind.__name__, reason)  # type: ignore[method-assign]
    nn.DataParallel.__init__ = for_one_device(script, nn.DataParallel.__init__)  # type: ignore[method-assign]
    for (module, name), reason in FUNCTIONS.items():
        shown = f"{module.__name__.rpartition('.')[2]}.{name}"
        setattr(module, name, guarded(script, getattr(module, name), shown, reason))


def guarded(script: AdaptedScript, function: Any, name: str, reason: str) -> Any:
    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not script.dormant and not asked_by_us():
            raise refuse(f"{name} {reason}")
        return function(*args, **kwargs)

    return call


def for_one_device(script: AdaptedScript, original: Any) -> Any:
    """`nn.DataParallel` of one device, or of a CPU, calls its module and does nothing else."""

    @functools.wraps(original)
    def init(self: nn.DataParallel[Any], module: Any, device_ids: Any = None, *args: Any, **kwargs: Any) -> None:
        devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if min(devices, devices if device_ids is None else len(device_ids)) > 1 and not script.dormant:
            raise refuse(
                "DataParallel has one process for all devices, but a policy needs one worker for each; leave it out, "
                "or let each worker see one device (CUDA_VISIBLE_DEVICES)"
            )
        original(self, module, device_ids, *args, **kwargs)

    return init
