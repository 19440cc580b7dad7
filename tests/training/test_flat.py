import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from polyrhythm.errors import PolyrhythmError
from polyrhythm.training.flat import FlatLayout, FlatModel, trainable_parameters

shapes = st.lists(st.lists(st.integers(0, 4), max_size=3).map(tuple), min_size=1, max_size=6)


class Tied(nn.Module):
    """Two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)
        self.b.weight = self.a.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.b(self.a(x))  # type: ignore[no-any-return]


@settings(derandomize=True, max_examples=50, deadline=None)
@given(shapes)
def test_scatter_undoes_gather(all_shapes: list[tuple[int, ...]]) -> None:
    tensors = [torch.randn(shape) for shape in all_shapes]
    layout = FlatLayout.of({str(i): tensor for i, tensor in enumerate(tensors)})
    flat = layout.gather(tensors, torch.empty(layout.size))
    copies = [torch.zeros_like(tensor) for tensor in tensors]
    layout.scatter(flat, copies)
    assert all(torch.equal(copy, tensor) for copy, tensor in zip(copies, tensors, strict=True))


def test_a_model_keeps_its_outputs_and_learns_in_the_vector() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 2))
    x = torch.randn(5, 1, 4, 4)
    module.eval()
    before = module(x)
    model = FlatModel(module)
    assert torch.equal(module(x), before)
    model.parameters.zero_()
    assert not module(x).any()
    assert model.parameters.shape == (sum(p.numel() for p in module.parameters()),)


def test_the_forward_pass_updates_the_buffer_vector_and_loads_bring_it_back() -> None:
    model = FlatModel(nn.BatchNorm1d(3))
    start, counters = model.buffers.clone(), [counter.clone() for counter in model.counters]
    model.module(torch.randn(4, 3) + 5)
    assert model.buffers[:3].min() > 0.2
    assert model.counters[0] == 1
    saved = [torch.zeros_like(counter) for counter in model.counters]
    model.save_buffers(vector := torch.empty(6), saved)
    model.load(model.parameters.clone(), start, counters)
    assert torch.equal(model.buffers, start)
    assert model.counters[0] == 0
    assert saved[0] == 1
    assert not torch.equal(vector, start)


def test_a_tied_parameter_is_there_once_and_stays_tied() -> None:
    model = FlatModel(module := Tied())
    assert model.layout.size == 9 + 3 + 3
    model.parameters.fill_(2.0)
    assert module.a.weight is module.b.weight
    assert (module.b.weight == 2.0).all()


def test_frozen_parameters_are_left_out() -> None:
    module = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    module[0].requires_grad_(False)
    assert [segment.name for segment in FlatModel(module).layout.segments] == ["1.weight", "1.bias"]
    with pytest.raises(PolyrhythmError, match="no parameter with requires_grad=True"):
        trainable_parameters(module.requires_grad_(False))


def test_groups_are_contiguous() -> None:
    model = FlatModel(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)), [["0.bias", "1.bias"], ["1.weight", "0.weight"]])
    biases, weights = model.layout.groups
    assert [segment.name for segment in (*biases, *weights)] == ["0.bias", "1.bias", "1.weight", "0.weight"]
    assert (biases[0].start, biases[-1].stop, weights[-1].stop) == (0, 3, 9)


@pytest.mark.parametrize("groups", [[["weight"]], [["weight", "bias", "weight"]], [["weight", "bias", "x"]]])
def test_groups_must_name_every_parameter_once(groups: list[list[str]]) -> None:
    with pytest.raises(PolyrhythmError, match="groups must name every trainable parameter once"):
        FlatModel(nn.Linear(2, 2), groups)


def test_only_float32_on_one_device() -> None:
    with pytest.raises(PolyrhythmError, match=r"weight is torch.float64; .* convert the model first"):
        FlatModel(nn.Linear(2, 2).double())
    module = nn.Linear(2, 2)
    module.bias = nn.Parameter(torch.empty(2, device="meta"))
    with pytest.raises(PolyrhythmError, match="one device but got weight on cpu, bias on meta"):
        FlatModel(module)


def test_gradients_are_gathered_with_zeros_where_there_are_none() -> None:
    model = FlatModel(nn.Linear(2, 1))
    model.module.weight.grad = torch.tensor([[1.0, 2.0]])
    assert torch.equal(model.gather_gradients(torch.empty(3)), torch.tensor([1.0, 2.0, 0.0]))
