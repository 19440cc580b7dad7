from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import Optimizer

from polyrhythm.errors import ScenarioError
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.flat import FlatLayout
from polyrhythm.training.optimizer import (
    NUMBERS,
    FlatOptimizer,
    configured_optimizer,
    is_elementwise,
    number_keys,
    optimizer_class,
)

SHAPES = [(3, 4), (4, 2), (5, 1)]
CASES: list[tuple[str, dict[str, Any]]] = [
    ("SGD", {}),
    ("SGD", {"momentum": 0.9, "weight_decay": 0.01}),
    ("SGD", {"momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adam", {}),
    ("AdamW", {"amsgrad": True}),
    ("Adadelta", {}),
    ("Adagrad", {}),
    ("RMSprop", {"centered": True, "momentum": 0.5}),
    ("Rprop", {}),
    ("NAdam", {}),
    ("RAdam", {}),
    ("Adamax", {}),
    ("ASGD", {}),
    ("Adafactor", {}),
    ("Muon", {}),
]
NOT_ELEMENTWISE = {"Adafactor", "Muon"}


def tensors(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def flat_layout() -> FlatLayout:
    return FlatLayout.of({str(i): tensor for i, tensor in enumerate(tensors(0))})


def joined(parts: list[Tensor]) -> Tensor:
    return torch.cat([part.reshape(-1) for part in parts])


def flat_optimizer(name: str, options: dict[str, Any]) -> tuple[FlatOptimizer, Tensor]:
    vector = joined(tensors(0))
    return FlatOptimizer(optimizer_class(name), {"lr": 0.01, **options}, vector, flat_layout()), vector


def per_tensor(kind: type[Optimizer], options: dict[str, Any], steps: int) -> Tensor:
    weights = [torch.nn.Parameter(tensor) for tensor in tensors(0)]
    optimizer = kind(weights, **{"lr": 0.01, **options})
    for step in range(steps):
        for weight, gradient in zip(weights, tensors(step + 1), strict=True):
            weight.grad = gradient
        optimizer.step()
    return joined([weight.detach() for weight in weights])


@pytest.mark.parametrize(("name", "options"), CASES)
def test_flat_equals_per_tensor(name: str, options: dict[str, Any]) -> None:
    optimizer, vector = flat_optimizer(name, options)
    for step in range(30):
        optimizer.step(joined(tensors(step + 1)))
    assert optimizer.elementwise == (name not in NOT_ELEMENTWISE)
    torch.testing.assert_close(vector, per_tensor(optimizer_class(name), options, 30), rtol=1e-5, atol=1e-6)


def test_every_torch_class_with_dense_gradients_and_without_closures_is_covered() -> None:
    every = {name for name, cls in vars(torch.optim).items() if isinstance(cls, type) and issubclass(cls, Optimizer)}
    assert every - {"Optimizer", "LBFGS", "SparseAdam"} <= {name for name, _ in CASES}


@pytest.mark.parametrize(("name", "options"), CASES)
def test_a_state_carries_over(name: str, options: dict[str, Any]) -> None:
    first, expected = flat_optimizer(name, options)
    second, vector = flat_optimizer(name, options)
    for step in range(3):
        first.step(joined(tensors(step + 1)))
    vector.copy_(expected)
    second.load_state(first.state())
    for optimizer in (first, second):
        optimizer.step(joined(tensors(9)))
    assert torch.equal(vector, expected)


@pytest.mark.parametrize(("name", "options"), [case for case in CASES if case[0] != "Muon"])
def test_a_state_that_carries_over_has_none_for_tensors_that_made_no_step(name: str, options: dict[str, Any]) -> None:
    """Zeros are not what every optimizer begins with."""
    layout = FlatLayout.of({"a": torch.zeros(2, 3)}, {"b": torch.zeros(3, 2)})
    kind, vectors = optimizer_class(name), torch.ones(2, 12)
    first, second = (FlatOptimizer(kind, {"lr": 0.1, **options}, vector, layout) for vector in vectors)
    first.idle = frozenset({1})
    for step in range(3):
        first.step(torch.full((12,), step + 1.0))
    vectors[1] = vectors[0]
    state = first.state()
    second.load_state(state)
    first.idle = frozenset()
    for optimizer in (first, second):
        optimizer.step(torch.ones(12))
    assert torch.equal(vectors[0], vectors[1])


def test_a_state_is_a_named_flat_vector_and_a_copy() -> None:
    optimizer, vector = flat_optimizer("SGD", {"momentum": 0.9})
    assert optimizer.state().vectors == {}
    gradient = joined(tensors(1))
    optimizer.step(gradient)
    state = optimizer.state()
    assert torch.equal(state.vectors["momentum_buffer"].values, gradient)
    optimizer.step(gradient)
    assert torch.equal(state.vectors["momentum_buffer"].values, gradient)
    optimizer.load_state(state)
    optimizer.step(gradient)
    assert torch.equal(state.vectors["momentum_buffer"].values, gradient)
    assert vector.isfinite().all()


def test_reset_forgets_the_state() -> None:
    optimizer, vector = flat_optimizer("Adam", {})
    optimizer.step(joined(tensors(1)))
    optimizer.reset()
    assert optimizer.state().vectors == {}
    vector.copy_(joined(tensors(0)))
    optimizer.step(joined(tensors(1)))
    torch.testing.assert_close(vector, per_tensor(torch.optim.Adam, {}, 1))


def test_the_rate_and_the_momentum_of_one_step() -> None:
    optimizer, vector = flat_optimizer("SGD", {"momentum": 0.9})
    ones, start = torch.ones_like(vector), vector.clone()
    optimizer.step(ones, lr_scale=2.0)
    optimizer.step(ones, momentum=0.0)
    optimizer.step(ones)
    # Buffers are 1, then 0 * 1 + 1 = 1, then 0.9 * 1 + 1.
    torch.testing.assert_close(vector, start - 0.01 * (2.0 + 1.0 + 1.9))


def test_momentum_for_some_steps_of_plain_sgd() -> None:
    optimizer, vector = flat_optimizer("SGD", {})
    ones, start = torch.ones_like(vector), vector.clone()
    optimizer.step(ones, lr_scale=2.0)
    optimizer.step(ones, momentum=0.5)
    optimizer.step(ones, momentum=0.5)
    optimizer.step(ones)
    # Buffers are 1, then 0.5 * 1 + 1; the first and the last step have none.
    torch.testing.assert_close(vector, start - 0.01 * (2.0 + 1.0 + 1.5 + 1.0))


def test_momentum_is_the_first_beta_of_adam_and_refused_by_adagrad() -> None:
    adam, _ = flat_optimizer("Adam", {})
    adam.step(joined(tensors(1)), momentum=0.5)
    assert adam.optimizer.param_groups[0]["betas"] == (0.5, 0.999)
    adagrad, _ = flat_optimizer("Adagrad", {})
    with pytest.raises(ScenarioError, match=r"momentum 0.5 was asked for but the optimizer Adagrad has none"):
        adagrad.step(joined(tensors(1)), momentum=0.5)


def test_groups_have_their_own_options() -> None:
    layout = FlatLayout.of({"a": torch.zeros(2)}, {"b": torch.zeros(3)})
    vector = torch.zeros(5)
    FlatOptimizer(torch.optim.SGD, {"lr": 0.1}, vector, layout, [{}, {"lr": 1.0}]).step(torch.ones(5), lr_scale=2.0)
    torch.testing.assert_close(vector, torch.tensor([-0.2, -0.2, -2.0, -2.0, -2.0]))


@pytest.mark.parametrize("groups", [1, 2])
def test_an_idle_group_stays_as_it_is(groups: int) -> None:
    """Also where it is alone: a shard may have one group of several."""
    layout = FlatLayout.of(*({f"p{number}": torch.zeros(2)} for number in range(groups)))
    vector = torch.ones(2 * groups)
    optimizer = FlatOptimizer(torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.1}, vector, layout)
    optimizer.idle = frozenset({0})
    optimizer.step(torch.zeros(2 * groups))
    assert vector.tolist() == [1.0, 1.0] + [pytest.approx(0.99)] * (2 * groups - 2)


@pytest.mark.parametrize(("more", "moved"), [({"weight_decay": 0.5}, 1.5), ({"maximize": True}, -1.0)])
def test_groups_of_plain_sgd_may_have_more_than_a_rate(more: dict[str, Any], moved: float) -> None:
    layout = FlatLayout.of({"a": torch.zeros(2)}, {"b": torch.zeros(3)})
    vector = torch.ones(5)
    FlatOptimizer(torch.optim.SGD, {"lr": 0.1}, vector, layout, [{}, more]).step(torch.ones(5))
    torch.testing.assert_close(vector, 1 - 0.1 * torch.tensor([1.0, 1.0, moved, moved, moved]))


def test_an_optimizer_of_the_same_kind_on_another_vector_starts_without_state() -> None:
    optimizer, vector = flat_optimizer("Adam", {})
    optimizer.step(joined(tensors(1)))
    before, other = vector.clone(), joined(tensors(0))
    optimizer.on(other).step(joined(tensors(1)))
    assert torch.equal(other, vector)
    assert torch.equal(vector, before)


def test_the_configured_optimizer_has_what_was_asked() -> None:
    config = TrainingConfig(optimizer="Adam", learning_rate=0.1, weight_decay=0.2, optimizer_options={"eps": 0.5})
    group = configured_optimizer(config, torch.zeros(29), flat_layout()).optimizer.param_groups[0]
    assert (group["lr"], group["weight_decay"], group["eps"]) == (0.1, 0.2, 0.5)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"optimizer": "Addam"}, "unknown optimizer 'Addam': did you mean Adam"),
        ({"optimizer": "Optimizer"}, "unknown optimizer 'Optimizer'"),
        ({"optimizer": "Adagrad", "momentum": 0.9}, "Adagrad has no option 'momentum'"),
        ({"optimizer_options": {"dampning": 0.1}}, "did you mean dampening"),
        ({"optimizer": "Adam", "optimizer_options": {"eps": -1.0}}, "Invalid epsilon value"),
        ({"optimizer": "LBFGS"}, "optimizer LBFGS cannot be used here"),
        ({"optimizer": "SparseAdam"}, "optimizer SparseAdam cannot be used here"),
    ],
)
def test_a_wrong_optimizer_is_one_clear_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        configured_optimizer(TrainingConfig(**fields), torch.zeros(29), flat_layout())
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_muon_refuses_a_model_with_biases_in_one_clear_line() -> None:
    layout = FlatLayout.of({"bias": torch.zeros(4)})
    with pytest.raises(ScenarioError, match="optimizer Muon refuses its options or the model"):
        FlatOptimizer(torch.optim.Muon, {"lr": 0.1}, torch.zeros(4), layout)


class RowNormalised(Optimizer):
    """Divides each row by its norm, so that shapes matter."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(torch.nn.functional.normalize(p.grad, dim=-1), alpha=group["lr"])


def test_a_users_own_class_that_looks_at_shapes_is_found_out() -> None:
    assert not is_elementwise(RowNormalised, {})
    vector = joined(tensors(0))
    FlatOptimizer(RowNormalised, {"lr": 0.01}, vector, flat_layout()).step(joined(tensors(1)))
    torch.testing.assert_close(vector, per_tensor(RowNormalised, {}, 1))


def scalar_entries(name: str, options: dict[str, Any], shape: tuple[int, ...]) -> set[str]:
    """Entries without dimensions of the state for a parameter of this shape, after a step."""
    weight = torch.nn.Parameter(torch.ones(shape))
    optimizer = optimizer_class(name)([weight], **{"lr": 0.01, **options})
    weight.grad = torch.ones(shape)
    optimizer.step()
    return {key for key, value in optimizer.state[weight].items() if isinstance(value, Tensor) and not value.dim()}


@pytest.mark.parametrize(("name", "options"), CASES)
def test_all_numbers_of_torchs_optimizers_are_known_by_their_names(name: str, options: dict[str, Any]) -> None:
    assert scalar_entries(name, options, (2, 3)) <= NUMBERS
    if name != "Muon":  # it takes matrices only
        assert scalar_entries(name, options, ()) & NUMBERS == scalar_entries(name, options, (2, 3))


def test_numbers_are_told_by_larger_parameters_and_else_by_their_names() -> None:
    scale, weight = torch.tensor(1.0), torch.ones(2)
    entries = [(scale, "count", scale), (weight, "count", scale), (scale, "mu", scale), (weight, "mu", weight)]
    assert number_keys(entries) == number_keys(entries[::-1]) == {"count"}
    assert number_keys([(scale, "mu", scale), (scale, "exp_avg", scale), (scale, "seen", 3)]) == {"mu", "seen"}
    assert number_keys([(weight, "momentum_buffer", None)]) == set()


def test_a_flat_state_has_both_shapes_of_an_entry() -> None:
    """Adafactor has the variance of a parameter as a whole, or of its rows and columns."""
    layout = FlatLayout.of({"scale": torch.tensor(1.0), "weight": torch.ones(2, 3)})
    vector = torch.ones(7)
    optimizer = FlatOptimizer(torch.optim.Adafactor, {"lr": 0.1}, vector, layout)
    optimizer.step(torch.ones(7))
    state = optimizer.state()
    assert state.vectors["variance"].shapes == (torch.Size(), torch.Size([2, 3]))
    assert state.vectors["step"].shapes == (torch.Size(), torch.Size())
    optimizer.load_state(state)
    optimizer.step(torch.ones(7))
    assert optimizer.state().vectors["step"].values.tolist() == [2.0, 2.0]
