"""Cutting a model over shards and joining its state again."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.wire.segments import (
    ALIGNMENT,
    cut_spans,
    group_sizes,
    join_states,
    pack_state,
    shard_layout,
    slice_state,
    unpack_state,
)
from polyrhythm.runtime.wire.shard_protocol import Layout, Parameter
from polyrhythm.training.flat import FlatLayout
from polyrhythm.training.optimizer import FlatOptimizer, OptimizerState

LAWS = settings(derandomize=True, max_examples=100, deadline=None, database=None)


@LAWS
@given(st.lists(st.integers(0, 500), min_size=1, max_size=6), st.integers(1, 5))
def test_spans_cover_the_vector_once_at_aligned_cuts(sizes: list[int], count: int) -> None:
    try:
        spans = cut_spans(sizes, count)
    except PolyrhythmError:
        assert sum(sizes) < (count + 1) * ALIGNMENT
        return
    assert [span.start for span in spans] + [sum(sizes)] == [0] + [span.stop for span in spans]
    assert all(span.start % ALIGNMENT == 0 for span in spans)
    assert max(span.elements for span in spans) - min(span.elements for span in spans) <= 2 * ALIGNMENT
    owner = [group for group, size in enumerate(sizes) for _ in range(size)]
    covered = [group for span in spans for group, start, stop in span.pieces for _ in range(start, stop)]
    assert covered == owner
    assert list(dict.fromkeys(piece.group for span in spans for piece in span.pieces)) == list(range(len(sizes)))


def test_too_many_shards_are_refused() -> None:
    with pytest.raises(PolyrhythmError, match="a model of 30 parameters is too small for 4 shards"):
        cut_spans([30], 4)


def test_one_shard_keeps_the_tensors_of_the_model() -> None:
    layout = Layout(((Parameter("w", (2, 3)), Parameter("b", (3,))), (Parameter("v", (4,)),)))
    (span,) = cut_spans(group_sizes(layout), 1)
    flat = shard_layout(layout, span, whole=True)
    assert [[(s.name, tuple(s.shape), s.start) for s in group] for group in flat.groups] == [
        [("w", (2, 3), 0), ("b", (3,), 6)],
        [("v", (4,), 9)],
    ]


def trained(
    kind: type[torch.optim.Optimizer], sizes: list[int], idle: frozenset[int] = frozenset()
) -> tuple[FlatOptimizer, torch.Tensor]:
    """An optimizer with some history, on groups of these sizes."""
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(sum(sizes), generator=generator)
    layout = FlatLayout.of(*({f"w{i}": torch.zeros(size)} for i, size in enumerate(sizes)))
    optimizer = FlatOptimizer(kind, {"lr": 0.01}, vector, layout)
    optimizer.idle = idle
    for _ in range(3):
        optimizer.step(torch.randn(sum(sizes), generator=generator))
    return optimizer, vector


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.NAdam, torch.optim.Adagrad, torch.optim.ASGD])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("sizes", [[50, 7, 90], [0, 48, 0, 99, 0]])
def test_a_state_cut_packed_unpacked_and_joined_is_the_same(
    kind: type[torch.optim.Optimizer], sizes: list[int], count: int
) -> None:
    optimizer, vector = trained(kind, sizes)
    state = optimizer.state()
    spans = cut_spans(sizes, count)
    parts, states = [], []
    for span in spans:
        shape, packed = pack_state(vector[span.start : span.stop], slice_state(state, sizes, span))
        part, own = unpack_state(shape, packed, span.elements)
        parts.append(part)
        states.append(own)
    joined = join_states(states, spans)
    assert torch.equal(torch.cat(parts), vector)
    assert joined.numbers == state.numbers
    assert joined.vectors.keys() == state.vectors.keys()
    for key, entry in state.vectors.items():
        assert torch.equal(joined.vectors[key].values, entry.values)
        assert joined.vectors[key].shapes == entry.shapes


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.NAdam])
@pytest.mark.parametrize("idle", [0, 1, 2])
@pytest.mark.parametrize("count", [1, 3])
def test_groups_that_made_no_step_have_no_state_on_any_shard(
    kind: type[torch.optim.Optimizer], idle: int, count: int
) -> None:
    """A shard may hold nothing else, and so have no state at all."""
    sizes = [64, 64, 64]
    optimizer, _ = trained(kind, sizes, frozenset({idle}))
    state, spans, states = optimizer.state(), cut_spans(sizes, count), []
    for span in spans:
        shape, packed = pack_state(torch.empty(0), slice_state(state, sizes, span))
        own = unpack_state(shape, packed, 0)[1]
        states.append(OptimizerState({}, {}, own.absent) if len(own.absent) == len(span.pieces) else own)
    joined = join_states(states, spans)
    assert joined.absent == state.absent == {idle}
    assert joined.vectors.keys() == state.vectors.keys()
    for key, entry in state.vectors.items():
        assert torch.equal(joined.vectors[key].values, entry.values)
        assert joined.vectors[key].shapes == entry.shapes


def test_an_empty_state_stays_empty() -> None:
    spans = cut_spans([64], 2)
    empty = OptimizerState({}, {})
    assert join_states([slice_state(empty, [64], span) for span in spans], spans) == empty
