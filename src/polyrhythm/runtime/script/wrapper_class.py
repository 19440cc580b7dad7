"""Torch's own DistributedDataParallel in an adapted script: the same class, whose objects follow the policy.

Scripts compare the class of their model, save it by its name, and derive classes of their own. So it is not replaced: a
method looks whether the object is a wrapper of the script's, or torch's own behind one.
"""

import functools
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any

import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel, distributed

from polyrhythm.runtime.collectives.attending.attendance import Attended
from polyrhythm.runtime.script.notices import refuse
from polyrhythm.runtime.script.script import AdaptedScript
from polyrhythm.runtime.script.wrapper import UNABLE, ScriptDDP, become_wrapper

NAMED = {name for name in vars(DistributedDataParallel) if not name.startswith("__")} - {"_abc_impl", "train"}
EXCHANGE = NAMED | {"__call__", "__getstate__", "__setstate__"}
"""What a derived class may not have of its own. Its constructor is around torch's, as its `__getattr__` is."""
MACHINERY = {name for name in NAMED if name.startswith("_")} - {*vars(ScriptDDP)} | {"reducer"}
"""What its code may not use."""


def patch_wrapper(script: AdaptedScript) -> None:
    """Its exchange changes with the policy, in objects that the script makes."""
    for name, ours in vars(ScriptDDP).items():
        if isinstance(ours, FunctionType):
            setattr(DistributedDataParallel, name, either(ours, getattr(DistributedDataParallel, name)))
        elif isinstance(ours, property):  # keeps the value where torch has it
            setattr(DistributedDataParallel, name, ours)
    original = DistributedDataParallel.__init__

    @functools.wraps(original)
    def init(self: DistributedDataParallel, module: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(self, Attended) or script.dormant:
            original(self, module, *args, **kwargs)
            return
        check_class(type(self))
        options = bind(original, args, kwargs)
        check_wrapper(options)
        options.pop("process_group", None)
        group = dist.group.WORLD
        if group is None:
            raise refuse("DistributedDataParallel without init_process_group; call it first")
        script.wrapped(become_wrapper(self, module, group, options))

    DistributedDataParallel.__init__ = init  # type: ignore[method-assign]


def either(ours: Callable[..., Any], torchs: Callable[..., Any]) -> Callable[..., Any]:
    """The method of a wrapper of the script's, or torch's own; what is restored is what its state says."""
    restores = ours.__name__ == "__setstate__"

    @functools.wraps(torchs)
    def call(self: DistributedDataParallel, *args: Any, **kwargs: Any) -> Any:
        method = ours if "_lane" in (args[0] if restores else self.__dict__) else torchs
        return method(self, *args, **kwargs)

    return call


def check_class(kind: type[DistributedDataParallel]) -> None:
    """A class that is derived from torch's may add to it, but not take part in the exchange."""
    for each in kind.__mro__[: kind.__mro__.index(DistributedDataParallel)]:
        used = {name for value in vars(each).values() for name in names_used(value)}
        for verb, names in (("replaces", EXCHANGE & {*vars(each)}), ("uses", MACHINERY & used)):
            if names:
                raise refuse(
                    f"{kind.__name__} {verb} {min(names)} of DistributedDataParallel, whose exchange follows the "
                    "policy; do that in the module that it wraps, or use DistributedDataParallel itself"
                )


def names_used(value: object) -> Iterator[str]:
    """Names in the code of what a class has, with those of functions within it.

    >>> sorted(names_used(property(lambda model: [each.gather for each in model.reducer])))
    ['gather', 'reducer']
    """
    parts: tuple[object, ...] = ()
    match value:
        case CodeType():
            yield from value.co_names
            parts = value.co_consts
        case FunctionType():
            around = getattr(value, "__wrapped__", None)
            torchs = getattr(around, "__globals__", None) is vars(distributed)  # which it may call
            parts = value.__code__, None if torchs else around
        case property():
            parts = value.fget, value.fset
        case staticmethod() | classmethod():
            parts = (value.__func__,)
        case functools.cached_property():
            parts = (value.func,)
    for part in parts:
        yield from names_used(part)


def bind(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = function.__code__.co_varnames[2 : function.__code__.co_argcount]
    return {**dict(zip(names, args, strict=False)), **kwargs}


def check_wrapper(options: dict[str, Any]) -> None:
    for name in UNABLE:
        if options.get(name) is not None:
            raise refuse(f"DistributedDataParallel with {name} exchanges gradients by itself; leave it out")
    group = options.get("process_group")
    if group not in (None, dist.group.WORLD):
        raise refuse("DistributedDataParallel with a process_group of its own; leave it out, so that all ranks train")
