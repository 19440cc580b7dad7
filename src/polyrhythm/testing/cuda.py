"""Runs a script that is written for CUDA on a host without: ``python -m polyrhythm.testing.cuda script.py``.

The script stays as it is, byte for byte. Devices become the CPU, NCCL becomes gloo, pinned memory is ordinary memory.
It is a stand-in for tests of what a script *does*; nothing in it says how fast or how exact a GPU would be.

    torchrun --nproc-per-node 2 -m polyrhythm.testing.cuda train.py
    polyrhythm run --nproc-per-node 2 --policy asp -m polyrhythm.testing.cuda train.py
"""

import functools
import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.tensor  # annotations with torch.Generator, before that is replaced
from torch import nn
from torch.distributed import distributed_c10d
from torch.jit._builtins import _find_builtin, _register_builtin
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

CPU = torch.device("cpu")
GENERATOR = torch.Generator
QUIET = (
    *("set_device", "synchronize", "empty_cache", "manual_seed", "manual_seed_all", "reset_peak_memory_stats"),
    *("ipc_collect", "init", "set_stream", "reset_max_memory_allocated"),
)
"""Functions of torch.cuda that do nothing here."""

AMOUNTS = ("memory_allocated", "max_memory_allocated", "memory_reserved", "max_memory_reserved")

FACTORIES = (
    *("tensor", "as_tensor", "zeros", "ones", "empty", "full", "arange", "linspace", "eye", "rand", "randn", "randint"),
    *(
        "randperm",
        "zeros_like",
        "ones_like",
        "empty_like",
        "full_like",
        "rand_like",
        "randn_like",
        "logspace",
        "tril_indices",
    ),
    "triu_indices",
)
"""Functions of torch that make tensors where an argument says."""


def is_cuda(value: object) -> bool:
    """Whether a value names a CUDA device.

    >>> [is_cuda(value) for value in (0, "cuda:1", "cpu", torch.device("cuda"), torch.float16, True)]
    [True, True, False, True, False, False]
    """
    if isinstance(value, torch.device):
        return value.type == "cuda"
    return (isinstance(value, str) and value.startswith("cuda")) or (isinstance(value, int) and value is not True)


def on_cpu(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the CPU in place of every CUDA device among its arguments."""

    @functools.wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if args and is_cuda(args[0]):
            args = (CPU, *args[1:])
        if is_cuda(kwargs.get("device")):
            kwargs["device"] = CPU
        return function(self, *args, **kwargs)

    return call


def without(function: Callable[..., Any], **changed: Any) -> Callable[..., Any]:
    """The function with these arguments, where they were given by name."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **{**kwargs, **{key: value for key, value in changed.items() if key in kwargs}})

    return call


def with_gloo(init: Callable[..., Any]) -> Callable[..., Any]:
    """The function with gloo in place of NCCL, given by name or as the first argument."""

    @functools.wraps(init)
    def call(backend: str | None = None, *args: Any, **kwargs: Any) -> Any:
        return init("gloo" if backend and "nccl" in backend else backend, *args, **kwargs)

    return call


class Stream:
    """A stream, or an event in one: everything happens in order here."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.recorded_s = 0.0
        done = lambda *_, **__: None  # noqa: E731
        self.synchronize = self.wait_stream = self.wait_event = self.wait = done
        self.query = lambda: True

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *error: object) -> None:
        """What was done in it is done."""

    def record(self, stream: "Stream | None" = None) -> None:
        """Note the time."""
        self.recorded_s = time.perf_counter()

    def record_event(self, event: "FakeEvent | None" = None) -> "FakeEvent":
        """Note the time in an event, by default a new one."""
        event = event or FakeEvent()
        event.record()
        return event

    def elapsed_time(self, later: "FakeEvent") -> float:
        """Milliseconds between two events."""
        return (later.recorded_s - self.recorded_s) * 1e3


class FakeEvent(Stream):
    """A moment in a stream."""


class GeneratorType(type):
    """What `torch.Generator` is here: it makes those of the CPU, and every generator is of it."""

    def __call__(cls, device: Any = CPU) -> torch.Generator:
        """A generator where the script says, or here."""
        return GENERATOR(CPU if is_cuda(device) else device)

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, GENERATOR)


class Generator(metaclass=GeneratorType):
    """A generator of random numbers."""


def quiet() -> Callable[..., None]:
    """A function that does nothing; a new one each time, because torch's compiler takes one for one thing."""
    return lambda *_, **__: None


def install() -> None:
    """Pretend that there is a GPU for every local rank. There is no way back in this process."""
    for kind in (torch.Tensor, nn.Module):
        kind.to = on_cpu(kind.to)  # type: ignore[method-assign]
        kind.cuda = lambda self, *_, **__: self  # type: ignore[method-assign]
    for name in QUIET:
        setattr(torch.cuda, name, quiet())
    count = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    torch.cuda.is_available = lambda: True
    torch.cuda.device_count = lambda: count
    torch.Tensor.pin_memory = lambda self, *_, **__: self  # type: ignore[method-assign]
    torch.cuda.is_current_stream_capturing = lambda: False
    torch.cuda.current_device = lambda: int(os.environ.get("LOCAL_RANK", "0"))
    pretend_properties()
    patch_factories()
    pretend_accelerator(count)
    wrapper, loader = DistributedDataParallel, DataLoader
    wrapper.__init__ = without(wrapper.__init__, device_ids=None, output_device=None)  # type: ignore[method-assign]
    loader.__init__ = without(loader.__init__, pin_memory=False)  # type: ignore[method-assign]
    init = with_gloo(without(dist.init_process_group, device_id=None))
    dist.init_process_group = distributed_c10d.init_process_group = init


def pretend_properties() -> None:
    """What scripts ask a GPU about itself."""
    cuda: Any = torch.cuda
    name = "stand-in for CUDA"
    found = SimpleNamespace(name=name, major=8, minor=0, total_memory=1 << 34, multi_processor_count=1)
    cuda.is_bf16_supported = lambda *_, **__: True
    cuda.get_device_properties = lambda *_, **__: found
    cuda.get_device_name = lambda *_, **__: name
    cuda.get_device_capability = lambda *_, **__: (found.major, found.minor)
    cuda.mem_get_info = lambda *_, **__: (found.total_memory, found.total_memory)
    for amount in AMOUNTS:
        setattr(cuda, amount, lambda *_, **__: 0)
    cuda.Stream, cuda.Event = Stream, FakeEvent
    cuda.stream = lambda stream: stream or Stream()
    cuda.current_stream = cuda.default_stream = lambda *_, **__: Stream()
    torch.Tensor.record_stream = quiet()  # type: ignore[method-assign]


def patch_factories() -> None:
    """Tensors that are made on the GPU are made here."""
    for name in FACTORIES:
        setattr(torch, name, elsewhere(getattr(torch, name)))
    for name in ("new_tensor", "new_zeros", "new_ones", "new_empty", "new_full"):
        setattr(torch.Tensor, name, elsewhere(getattr(torch.Tensor, name)))
    torch.set_default_device = quiet()
    load = torch.load
    torch.load = lambda file, map_location=None, *args, **kwargs: load(
        file, CPU if is_cuda(map_location) else map_location, *args, **kwargs
    )
    torch.Generator = Generator  # type: ignore[misc, assignment]


def elsewhere(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the CPU in place of a CUDA device given by name."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        # By name only: a number may be a size.
        if "device" in kwargs and is_cuda(kwargs["device"]):
            kwargs["device"] = CPU
        return function(*args, **kwargs)

    if name := _find_builtin(function):  # type: ignore[no-untyped-call]
        _register_builtin(call, name)
    return call


def pretend_accelerator(count: int) -> None:
    """The same under the names that are common to all kinds of device; torch, which asks for a check, is told none."""
    accelerator = torch.accelerator
    accelerator.is_available = lambda: True
    accelerator.device_count = lambda: count
    accelerator.current_accelerator = lambda check_available=False: None if check_available else torch.device("cuda")
    accelerator.current_device_index = torch.cuda.current_device
    for name in ("set_device_index", "set_device_idx", "synchronize"):
        setattr(accelerator, name, quiet())


def main(script: str, *arguments: str) -> None:
    """Run a script under the stand-in."""
    install()
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).resolve().parent))
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
