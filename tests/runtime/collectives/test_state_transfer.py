"""One member's optimizer state for all members, on real gloo processes."""

import sys
from collections import OrderedDict
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch._C._distributed_c10d import TCPStore

from polyrhythm.errors import UsageError
from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.state_transfer import described, hand_over_states, rebuilt, tell_states
from polyrhythm.testing.processes import run_workers

SIZE = 2

STATES: list[dict[str, Any]] = [
    {
        "step": 5,
        "rate": 5.0,
        "seen": 2**53 + 1,
        "hash": -(2**200),
        "name": "int",
        "first": True,
        "none": None,
        "shape": torch.Size([2, 3]),
        "factors": {0: (torch.ones(2), [torch.tensor(3), "tensor"]), "deep": {(1, 2): []}},
        "order": OrderedDict(b=1, a=2),
    },
    {},
]


class Scheme:
    """What belongs in no state that is handed over."""

    def __repr__(self) -> str:
        return "Scheme(3)"


def taken_over(rank: int, port: int, states: list[dict[str, Any]]) -> str:
    """What a member has in the end that begins with none; or what it is told."""
    store = TCPStore("127.0.0.1", port, is_master=False)
    generation = Generation(store, "all", range(SIZE), rank)
    own: list[dict[str, Any]] = [{**each, "scheme": Scheme()} for each in states] if rank else states
    try:
        found = repr(hand_over_states(generation, own, 0))
    except UsageError as error:
        found = str(error)
    store.set(f"through/{rank}", "")
    store.wait([f"through/{other}" for other in range(SIZE)])
    return found


def test_all_have_the_state_of_one_as_it_is(store: TCPStore) -> None:
    assert run_workers(taken_over, SIZE, store.port, STATES) == [repr(STATES)] * SIZE


def test_what_cannot_go_over_is_refused_by_name_on_all_members(store: TCPStore) -> None:
    first, second = run_workers(taken_over, SIZE, store.port, [{}, {"inner": [0, {"scheme": Scheme()}]}])
    assert first == second
    assert first.startswith("state[1]['inner'][1]['scheme'] of the optimizer is Scheme(3) of class Scheme, which")


@pytest.mark.parametrize("value", [2**63, 2**64 - 1, 2**64, -(2**63), -(2**64), -0.0, float("inf"), [], ()])
def test_a_value_that_is_told_is_the_same(value: Any) -> None:
    told = msgspec.msgpack.decode(msgspec.msgpack.encode(described(value, "state[0]", [])))
    assert repr(rebuilt(told, iter([]))) == repr(value)


@pytest.mark.parametrize("value", [np.int64(-3), np.float32(0.1), np.float64(0.1), np.bool_(True)])
def test_a_number_of_numpy_goes_over_as_one_of_python(value: Any) -> None:
    told = described(value, "state[0]", [])
    assert told == value
    assert type(told) in (bool, int, float)


def test_bytes_that_name_a_module_import_none() -> None:
    tree = msgspec.msgpack.decode(tell_states([{}])[0])
    assert tree["tree"] == ["list", [["dict", []]]]
    with pytest.raises(KeyError, match="antigravity"):
        rebuilt(["antigravity.Class", []], iter([]))
    assert "antigravity" not in sys.modules
