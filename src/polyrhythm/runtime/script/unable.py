"""Parts of torch that bring an exchange of their own: a script that uses one is refused where it does."""

import functools
from typing import Any

import torch
from torch import nn
from torch.distributed import fsdp
from torch.distributed.tensor import parallel

from polyrhythm.runtime.script.notices import asked_by_us, refuse
from polyrhythm.runtime.script.script import AdaptedScript

IN_GROUPS = "; in a script with polyrhythm.session, fully_shard works within groups of processes (--group-size)"

CLASSES = {
    fsdp.FullyShardedDataParallel: f"shards parameters, but a policy needs whole replicas{IN_GROUPS}",
}
FUNCTIONS = {
    (fsdp, "fully_shard"): f"shards parameters, but a policy needs whole replicas{IN_GROUPS}",
    (parallel, "parallelize_module"): "splits the model, but a policy needs whole replicas",
}


def patch(script: AdaptedScript) -> None:
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
            raise refuse("DataParallel has one process for all devices, but a policy needs one worker for each")
        original(self, module, device_ids, *args, **kwargs)

    return init
