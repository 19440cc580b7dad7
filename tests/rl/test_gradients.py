import pytest
import torch

from polyrhythm.rl.data import image_data, sampled
from polyrhythm.rl.gradients import ArrayGradients
from polyrhythm.training.averaging import Buffers
from polyrhythm.training.flat import FlatModel
from polyrhythm.training.gradient import GradientRequest, PlainGradients


def requests(model: FlatModel, rows: int) -> list[GradientRequest]:
    buffers, generator = Buffers(model.buffers, model.counters), torch.Generator().manual_seed(1)
    return [
        GradientRequest(
            model.parameters + 0.1 * torch.randn(model.layout.size, generator=generator),
            torch.randint(0, 700, (16,), generator=generator),
            buffers,
        )
        for _ in range(rows)
    ]


@pytest.mark.parametrize("hidden", [0, 1, 3])
@pytest.mark.parametrize("rows", [1, 6])
def test_in_numpy_it_is_the_gradient_of_autograd(hidden: int, rows: int) -> None:
    task = sampled(image_data("digits"), 0.5, 0, hidden, 64)
    model = FlatModel(task.build(0))
    batch, arrays = requests(model, rows), ArrayGradients(task, model)
    for ours, theirs in zip(arrays.compute(batch), PlainGradients(task, model).compute(batch), strict=True):
        torch.testing.assert_close(ours.vector, theirs.vector)
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
        assert ours.sq_norm == pytest.approx(theirs.sq_norm, rel=1e-4)


@pytest.mark.parametrize("hidden", [0, 2])
def test_an_evaluation_is_that_of_the_module(hidden: int) -> None:
    task = sampled(image_data("digits"), 0.5, 0, hidden, 64)
    model = FlatModel(task.build(0))
    (request,) = requests(model, 1)
    ours = ArrayGradients(task, model).evaluate(request.parameters, request.buffers)
    theirs = PlainGradients(task, model).evaluate(request.parameters, request.buffers)
    assert [type(number) for number in ours] == [float, float]  # as a result is stored
    assert ours == pytest.approx(theirs, rel=1e-5)


def test_later_gradients_leave_earlier_ones_alone_and_norms_may_be_left_out() -> None:
    task = sampled(image_data("digits"), 0.5, 0, 1, 8)
    model = FlatModel(task.build(0))
    arrays = ArrayGradients(task, model)
    arrays.norms = False
    first, _ = arrays.compute(requests(model, 2))
    kept = first.vector.clone()
    arrays.compute(requests(model, 3))
    assert first.vector.equal(kept)
    assert first.sq_norm is None
