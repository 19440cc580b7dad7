"""The mean of the members' optimizer states, parameter by parameter: of those members that have one for it."""

from dataclasses import replace

import msgspec
import torch
from torch import Tensor

from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.ops import LaunchSum
from polyrhythm.runtime.collectives.state_transfer import share_bytes
from polyrhythm.runtime.wire.segments import pack_state, packed_elements, unpack_state
from polyrhythm.runtime.wire.shard_protocol import StateShape
from polyrhythm.training.optimizer import OptimizerState

WHOLE = 0.9999
"""Shares that sum up to less are not those of all members; beyond it is rounding."""


def mean_state(
    generation: Generation,
    own: OptimizerState,
    parameters: int,
    kind: torch.dtype,
    share: float,
    source: int,
    launch: LaunchSum,
) -> OptimizerState:
    """Mean state, by parameters, in the shape of that of the member of rank `source`.

    A parameter that has no state on any member has none in the mean, so that torch begins its state when its first
    gradient is there: zeros are not what every optimizer begins with.

    Args:
        generation: the members.
        own: this member's state, by parameters.
        parameters: how many there are.
        kind: what their states travel as.
        share: weight of this member; the shares of all sum up to 1.
        source: rank of a member.
        launch: starts a sum over the members.

    Raises:
        GroupError: when a member is lost.
    """
    shape, vectors = pack_state(torch.empty(0), replace(own, absent=frozenset()))  # who has none may differ
    agreed = msgspec.msgpack.decode(share_bytes(generation, msgspec.msgpack.encode(shape), source), type=StateShape)
    elements, counted = packed_elements(agreed, 0), share if shape == agreed else 0.0
    flat = torch.zeros(elements + parameters, dtype=kind)
    if counted:
        flat[:elements], flat[elements:] = vectors, presence(own, parameters)
        flat.mul_(counted)
    if elements or agreed.numbers:
        launch(generation, flat, not counted).wait()
    return over_present(unpack_state(agreed, flat[:elements], 0)[1], flat[elements:])


def presence(state: OptimizerState, parameters: int) -> Tensor:
    """1 for each parameter that has a state, and 0 for the others."""
    return torch.tensor([float(place not in state.absent) for place in range(parameters)])


def over_present(state: OptimizerState, present: Tensor) -> OptimizerState:
    """A sum of weighted states as the mean over those who have one; `present` sums up their shares by parameter.

    >>> from polyrhythm.training.optimizer import StateVector
    >>> shapes = (torch.Size([2]), torch.Size([1]), torch.Size([1]))
    >>> state = OptimizerState({"momentum": StateVector(torch.tensor([1.0, 2.0, 3.0, 0.0]), shapes)}, {})
    >>> mean = over_present(state, torch.tensor([1.0, 0.5, 0.0]))
    >>> mean.vectors["momentum"].values.tolist(), mean.absent
    ([1.0, 2.0, 6.0, 0.0], frozenset({2}))
    """
    shares = present.tolist()
    for vector in state.vectors.values():
        for piece, share in zip(vector.pieces(), shares, strict=True):
            if 0.0 < share < WHOLE:
                piece.div_(share)
    return replace(state, absent=frozenset(place for place, share in enumerate(shares) if not share))
