"""Messages of every kind that there is, made from the types of their fields: right ones by chance, mostly odd ones."""

import random
import types
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import is_dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec

from polyrhythm.runtime.checkpoint import manifest, returned
from polyrhythm.runtime.wire import control_protocol, protocol, shard_protocol
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import ControlMessage
from polyrhythm.runtime.wire.recovery import standby_protocol
from polyrhythm.runtime.wire.shard_protocol import ShardMessage

TEXTS = ("", "bsp", "asp", "no-such-policy", "./nowhere.py:Mine", "SGD", "int8", "(" * 3000, "phase-1", "x" * 40)
WHOLE = (-1, 0, 1, 2, 3, 7, 2**20, 2**40, 2**53, 2**70)
REAL = (0.0, -1.0, 0.5, 1e300, float("nan"), float("inf"))


def kinds() -> Iterator[type[msgspec.Struct]]:
    """All messages that a coordinator knows, and those that it sends."""
    for module in (protocol, shard_protocol, control_protocol, returned, manifest, standby_protocol):
        for found in vars(module).values():
            message = isinstance(found, type) and issubclass(found, msgspec.Struct) and found.__struct_config__.tag
            if message and found not in (ControlMessage, ShardMessage):
                yield found


KINDS = sorted(set(kinds()), key=lambda kind: kind.__name__)


def odd(kind: type[msgspec.Struct], dice: random.Random, tame: bool = False) -> msgspec.Struct:
    """A message of this kind; a tame one has numbers that a job may have."""
    return kind(**{name: value(hint, dice, tame) for name, hint in get_type_hints(kind).items()})


def readable(kind: type[msgspec.Struct], dice: random.Random) -> Any:
    """A message of this kind that a decoder lets through."""
    decoder = msgspec.msgpack.Decoder(kind)
    while True:
        with suppress(ValueError):
            return decoder.decode(msgspec.msgpack.encode(odd(kind, dice, tame=True)))


def value(hint: Any, dice: random.Random, tame: bool) -> Any:
    """Something of a type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return value(inner[0], dice, tame)
    if origin is Literal:
        return dice.choice(inner)
    if origin in (Union, types.UnionType):
        return value(dice.choice(inner), dice, tame)
    if origin is tuple and inner[-1:] == (...,):
        return tuple(value(inner[0], dice, tame) for _ in range(dice.randrange(3)))
    if origin is tuple:
        return tuple(value(each, dice, tame) for each in inner)
    if origin is dict:
        return {value(inner[0], dice, tame): value(inner[1], dice, tame) for _ in range(dice.randrange(3))}
    if hint is JobConfig:
        return JobConfig()
    if isinstance(hint, type) and (issubclass(hint, msgspec.Struct) or hasattr(hint, "_fields") or is_dataclass(hint)):
        return hint(**{name: value(each, dice, tame) for name, each in get_type_hints(hint).items()})
    return plain(hint, dice, tame)


def plain(hint: Any, dice: random.Random, tame: bool) -> Any:
    """Something of a type without parts."""
    if hint is int:
        return dice.randrange(6) if tame else dice.choice(WHOLE)
    if hint is float:
        return dice.random() if tame else dice.choice(REAL)
    choices: dict[Any, Any] = {
        str: TEXTS,
        bool: (False, True),
        bytes: (b"", b"x" * 16, b"y" * 32),
        type(None): (None,),
    }
    return dice.choice(choices.get(hint, (None, "any", 3)))
