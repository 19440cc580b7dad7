"""How a model's flat vector and its optimizer's state are cut over several parameter shards, and joined again; and how
what ranks have measured travels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from math import prod
from struct import Struct
from typing import Final, NamedTuple, TypeVar

import torch
from torch import Tensor

from polyrhythm.errors import UsageError
from polyrhythm.runtime.wire.protocol import MeasuredStep
from polyrhythm.runtime.wire.shard_protocol import Layout, StateShape
from polyrhythm.training.flat import FlatLayout, Segment
from polyrhythm.training.optimizer import OptimizerState, StateVector

Value = TypeVar("Value")

ALIGNMENT: Final = 16
"""A cut falls on a multiple of so many elements, 64 bytes, so that no cache line belongs to two shards."""


class Piece(NamedTuple):
    """Elements `start` to `stop` (exclusive) of the model's flat vector, all of one parameter group."""

    group: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class ShardSpan:
    """Elements `start` to `stop` (exclusive) of the model's flat vector: what one shard holds, by group."""

    start: int
    stop: int
    pieces: tuple[Piece, ...]

    @property
    def elements(self) -> int:
        return self.stop - self.start


def group_sizes(layout: Layout) -> tuple[int, ...]:
    return tuple(sum(prod(p.shape) for p in group) for group in layout.groups)


def cut_spans(sizes: Sequence[int], count: int) -> tuple[ShardSpan, ...]:
    """Equal spans for `count` shards, up to alignment, of a vector with groups of these sizes.

    Raises:
        UsageError: if there are more shards than aligned places to cut.

    Example:
        >>> [tuple(span.pieces[-1]) for span in cut_spans([100, 60], 2)]
        [(0, 0, 80), (1, 100, 160)]
    """
    total = sum(sizes)
    cuts = [total * i // count // ALIGNMENT * ALIGNMENT for i in range(count)] + [total]
    if any(start >= stop for start, stop in pairwise(cuts)):
        raise UsageError(f"a model of {total} parameters is too small for {count} shards; use fewer")
    bounds = [0, *accumulate(sizes)]
    return tuple(ShardSpan(start, stop, pieces(bounds, start, stop)) for start, stop in pairwise(cuts))


def pieces(bounds: Sequence[int], start: int, stop: int) -> tuple[Piece, ...]:
    """The parts of each group between two positions; `bounds` are where groups begin and end.

    A group without elements has a part too, in the span where the next one begins or the vector ends: its options and
    its state go where those of others go.
    """
    last = stop == bounds[-1]
    clipped = [Piece(g, max(a, start), min(b, stop)) for g, (a, b) in enumerate(pairwise(bounds)) if a < b]
    empty = [Piece(g, a, b) for g, (a, b) in enumerate(pairwise(bounds)) if a == b]
    kept = [piece for piece in empty if start <= piece.start < stop or (last and piece.start == stop)]
    return tuple(sorted([piece for piece in clipped if piece.start < piece.stop] + kept))


def shard_layout(layout: Layout, span: ShardSpan, whole: bool) -> FlatLayout:
    """Layout of one shard's vector: the model's own tensors if it holds them all, else one vector for each group."""
    if whole:
        parameters = [p for group in layout.groups for p in group]
        stops = list(accumulate(prod(p.shape) for p in parameters))
        named = zip(parameters, [0, *stops], stops, strict=False)
        segments = iter([Segment(p.name, torch.Size(p.shape), start, stop) for p, start, stop in named])
        groups = tuple(tuple(next(segments) for _ in group) for group in layout.groups)
        return FlatLayout(groups, span.elements)
    cuts = [(p.group, p.start - span.start, p.stop - span.start) for p in span.pieces]
    return FlatLayout(
        tuple((Segment(f"group {g}", torch.Size([stop - start]), start, stop),) for g, start, stop in cuts),
        span.elements,
    )


def slice_state(state: OptimizerState, sizes: Sequence[int], span: ShardSpan) -> OptimizerState:
    """The part of an optimizer's state that belongs to `span`; a step count goes to every shard of its group."""
    if span.elements == sum(sizes):
        return state
    starts = [0, *accumulate(sizes)]
    vectors = {}
    for key, vector in state.vectors.items():
        whole = vector.pieces()
        parts = [
            whole[g] if whole[g].dim() == 0 else whole[g][start - starts[g] : stop - starts[g]]
            for g, start, stop in span.pieces
        ]
        vectors[key] = joint(parts)
    numbers = {key: tuple(values[piece.group] for piece in span.pieces) for key, values in state.numbers.items()}
    absent = frozenset(place for place, piece in enumerate(span.pieces) if piece.group in state.absent)
    return OptimizerState(vectors, numbers, absent)


def join_states(states: Sequence[OptimizerState], spans: Sequence[ShardSpan]) -> OptimizerState:
    if len(states) == 1:
        return states[0]
    vectors = {}
    for key in dict.fromkeys(key for state in states for key in state.vectors):
        shape = next(state.vectors[key].shapes[0] for state in states if key in state.vectors)
        filled = [vector_pieces(state, key, span, single=not shape) for state, span in zip(states, spans, strict=True)]
        parts = by_group(filled, spans)
        vectors[key] = joint([part[0] if part[0].dim() == 0 else torch.cat(part) for part in parts])
    numbers: dict[str, tuple[float, ...]] = {}
    for key in dict.fromkeys(key for state in states for key in state.numbers):
        values = [s.numbers.get(key, (0.0,) * len(span.pieces)) for s, span in zip(states, spans, strict=True)]
        numbers[key] = tuple(each[-1] for each in by_group(values, spans))
    gone = [[n in state.absent for n in range(len(span.pieces))] for state, span in zip(states, spans, strict=True)]
    absent = frozenset(place for place, each in enumerate(by_group(gone, spans)) if all(each))
    return OptimizerState(vectors, numbers, absent)


def vector_pieces(state: OptimizerState, key: str, span: ShardSpan, single: bool) -> list[Tensor]:
    """Of one entry; zeros if the shard has none, because no group of its own has made a step yet."""
    if key in state.vectors:
        return state.vectors[key].pieces()
    return [torch.zeros(() if single else (piece.stop - piece.start,)) for piece in span.pieces]


def by_group(values: Sequence[Sequence[Value]], spans: Sequence[ShardSpan]) -> list[list[Value]]:
    """What the shards have for their pieces, joined by the group that these belong to."""
    groups: dict[int, list[Value]] = {}
    for own, span in zip(values, spans, strict=True):
        for piece, value in zip(span.pieces, own, strict=True):
            groups.setdefault(piece.group, []).append(value)
    return list(groups.values())


def joint(parts: Sequence[Tensor]) -> StateVector:
    return StateVector(torch.cat([part.reshape(-1) for part in parts]), tuple(part.shape for part in parts))


def shape_of(state: OptimizerState) -> StateShape:
    shapes = {key: tuple(tuple(shape) for shape in vector.shapes) for key, vector in state.vectors.items()}
    return StateShape(shapes, state.numbers, tuple(sorted(state.absent)))


def pack_state(parameters: Tensor, state: OptimizerState) -> tuple[StateShape, Tensor]:
    values = [vector.values for vector in state.vectors.values()]
    return shape_of(state), torch.cat([parameters, *values])


def packed_elements(shape: StateShape, elements: int) -> int:
    return elements + sum(prod(piece) for pieces in shape.vectors.values() for piece in pieces)


def unpack_state(shape: StateShape, packed: Tensor, elements: int) -> tuple[Tensor, OptimizerState]:
    """The reverse of `pack_state`; both results are views of `packed`."""
    lengths = [sum(prod(piece) for piece in pieces) for pieces in shape.vectors.values()]
    parameters, *values = torch.split(packed, [elements, *lengths])
    vectors = {
        key: StateVector(value, tuple(torch.Size(piece) for piece in pieces))
        for (key, pieces), value in zip(shape.vectors.items(), values, strict=True)
    }
    return parameters, OptimizerState(vectors, shape.numbers, frozenset(shape.absent))


MEASURED = Struct("<?d?d")


def packed(record: MeasuredStep) -> bytes:
    """A record in as many bytes as any other."""
    norm, loss = record
    return MEASURED.pack(norm is not None, norm or 0.0, loss is not None, loss or 0.0)


def unpacked(data: bytes) -> tuple[MeasuredStep, ...]:
    """The records of these bytes.

    >>> unpacked(packed(MeasuredStep(grad_sq_norm=4.0)) + packed(MeasuredStep(loss=0.5)))
    (MeasuredStep(grad_sq_norm=4.0, loss=None), MeasuredStep(grad_sq_norm=None, loss=0.5))
    """
    fields = MEASURED.iter_unpack(data)
    return tuple([MeasuredStep(a if has_a else None, b if has_b else None) for has_a, a, has_b, b in fields])
