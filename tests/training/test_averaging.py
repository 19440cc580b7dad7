from collections.abc import Callable

import pytest
import torch

from polyrhythm.core import Outer
from polyrhythm.training.averaging import Buffers, Replica, average, average_buffers, average_states
from polyrhythm.training.config import StateTreatment
from polyrhythm.training.flat import FlatLayout
from polyrhythm.training.optimizer import FlatOptimizer, OptimizerState, StateVector
from polyrhythm.training.server import GlobalParameters, Push

ONES = torch.ones(2)


def server(kind: Callable[..., torch.optim.Optimizer] = torch.optim.SGD, **options: float) -> GlobalParameters:
    vector = torch.zeros(2)
    assert isinstance(kind, type)
    return GlobalParameters(vector, FlatOptimizer(kind, {"lr": 0.1, **options}, vector, FlatLayout.of({"w": vector})))


def stepped(target: GlobalParameters, *counts: int) -> list[Replica]:
    """Replicas after so many local steps with a gradient of ones."""
    replicas = [Replica.of(target) for _ in counts]
    for replica, count in zip(replicas, counts, strict=True):
        for _ in range(count):
            replica.optimizer.step(ONES.clone())
    return replicas


def test_parameters_are_averaged_and_everyone_takes_the_average() -> None:
    target = server()
    replicas = stepped(target, 1, 3)
    average(target, replicas)
    torch.testing.assert_close(target.vector, -0.2 * ONES)
    assert target.version == 1
    for replica in replicas:
        assert torch.equal(replica.vector, target.vector)
    replicas[0].optimizer.step(ONES.clone())
    torch.testing.assert_close(target.vector, -0.2 * ONES)


def test_weights_are_normalised() -> None:
    target = server()
    average(target, stepped(target, 1, 3), weights=[6.0, 2.0])
    torch.testing.assert_close(target.vector, -0.15 * ONES)


def test_deltas_at_rate_one_are_parameters() -> None:
    parameters, deltas = server(), server()
    average(parameters, stepped(parameters, 1, 3))
    average(deltas, stepped(deltas, 1, 3), outer=Outer(1.0))
    torch.testing.assert_close(deltas.vector, parameters.vector)


def test_a_delta_counts_from_where_its_replica_started() -> None:
    target = server()
    early, late = stepped(target, 1, 1)
    average(target, [early], outer=Outer(1.0))
    average(target, [late], outer=Outer(0.5))
    torch.testing.assert_close(target.vector, -0.15 * ONES)
    early.optimizer.step(ONES.clone())
    average(target, [early], outer=Outer(1.0))
    torch.testing.assert_close(target.vector, -0.25 * ONES)


@pytest.mark.parametrize(
    ("treatment", "first", "second"), [("keep", 1.0, 1.5), ("average", 1.25, 1.25), ("reset", None, None)]
)
def test_the_state_of_the_optimizers(treatment: StateTreatment, first: float | None, second: float | None) -> None:
    target = server(momentum=0.5)
    replicas = stepped(target, 1, 2)
    average(target, replicas, state=treatment)
    buffers = [replica.optimizer.state().vectors.get("momentum_buffer") for replica in replicas]
    assert [None if b is None else b.values[0].item() for b in buffers] == [first, second]


def test_states_average_vectors_and_take_the_largest_step_count() -> None:
    target = server(torch.optim.Adam)
    mean = average_states([replica.optimizer.state() for replica in stepped(target, 1, 2)], [1.0, 3.0])
    moment = (1.0 * 0.1 + 3.0 * (0.9 * 0.1 + 0.1)) / 4
    torch.testing.assert_close(mean.vectors["exp_avg"].values, moment * ONES)
    assert mean.vectors["step"].values.tolist() == [2.0]


def test_a_replica_without_state_does_not_count_in_the_state() -> None:
    target = server(momentum=0.5)
    mean = average_states([replica.optimizer.state() for replica in stepped(target, 0, 2)])
    assert mean.vectors["momentum_buffer"].values.tolist() == [1.5, 1.5]
    assert average_states([OptimizerState({}, {})]) == OptimizerState({}, {})


def test_python_numbers_in_a_state_take_their_maximum() -> None:
    states = [OptimizerState({}, {"step": (1.0, 5.0)}), OptimizerState({}, {"step": (3.0, 2.0)})]
    assert average_states(states).numbers == {"step": (3.0, 5.0)}


def test_a_number_under_another_name_is_known_by_the_vectors_beside_it() -> None:
    shapes = {"t": torch.Size(), "momentum": torch.Size([2])}
    states = [
        OptimizerState(
            {key: StateVector(torch.full((max(1, shape.numel()),), value), (shape,)) for key, shape in shapes.items()},
            {},
        )
        for value in (3.0, 6.0)
    ]
    mean = average_states(states)
    assert mean.vectors["t"].values.tolist() == [6.0]
    assert mean.vectors["momentum"].values.tolist() == [4.5, 4.5]


def test_an_entry_of_parameters_without_dimensions_is_averaged_unless_it_counts() -> None:
    shapes = (torch.Size(), torch.Size())
    states = [
        OptimizerState({key: StateVector(torch.full((2,), value), shapes) for key in ("step", "variance")}, {})
        for value in (1.0, 3.0)
    ]
    mean = average_states(states)
    assert mean.vectors["step"].values.tolist() == [3.0, 3.0]
    assert mean.vectors["variance"].values.tolist() == [2.0, 2.0]


def test_a_new_replica_carries_the_servers_momentum() -> None:
    target = server(momentum=0.5)
    target.apply([Push(ONES.clone())])
    replica = Replica.of(target)
    replica.optimizer.step(ONES.clone())
    torch.testing.assert_close(replica.vector, -0.1 * ONES - 0.15 * ONES)
    torch.testing.assert_close(target.vector, -0.1 * ONES)


def test_buffers_take_mean_and_maximum_and_are_independent() -> None:
    inputs = [Buffers(torch.tensor([v, 2 * v]), [torch.tensor(int(v)), torch.tensor([v > 1])]) for v in (1.0, 4.0)]
    mean = average_buffers(inputs, [2.0, 1.0])
    assert mean.vector.tolist() == [2.0, 4.0]
    assert [counter.tolist() for counter in mean.counters] == [4, [True]]
    alone = average_buffers(inputs[:1])
    alone.vector.zero_()
    alone.counters[0].zero_()
    assert inputs[0].vector.tolist() == [1.0, 2.0]
    assert inputs[0].counters[0].item() == 1


def test_an_outer_step_is_sgd_on_the_negative_mean_delta() -> None:
    for nesterov in (False, True):
        target, parameters = server(), torch.zeros(2, requires_grad=True)
        sgd = torch.optim.SGD([parameters], lr=0.7, momentum=0.9, nesterov=nesterov)
        replicas = [Replica.of(target) for _ in range(2)]
        for steps in (1, 2, 3):
            before = target.vector.clone()
            for replica in replicas:
                for _ in range(steps):
                    replica.step(ONES.clone())
            parameters.grad = before - (replicas[0].vector + replicas[1].vector) / 2
            sgd.step()
            average(target, replicas, outer=Outer(0.7, 0.9, nesterov))
            torch.testing.assert_close(target.vector, parameters.detach())


def test_adopters_that_contribute_nothing_take_the_result() -> None:
    target = server(momentum=0.5)
    first, second, third = stepped(target, 1, 2, 3)
    average(target, [first, second], adopters=[first, third], state="average")
    torch.testing.assert_close(target.vector, (first_of(1) + first_of(2)) / 2 * ONES)
    assert torch.equal(first.vector, target.vector)
    assert torch.equal(third.vector, target.vector)
    torch.testing.assert_close(second.vector, first_of(2) * ONES)
    momenta = [one.optimizer.state().vectors["momentum_buffer"].values[0].item() for one in (first, second, third)]
    assert momenta == [1.25, 1.5, 1.25]


def first_of(steps: int) -> float:
    """Where so many steps at rate 0.1 and momentum 0.5 with gradients of one lead from zero."""
    return -0.1 * sum(2 - 0.5**step for step in range(steps))


@pytest.mark.parametrize("outer", [None, Outer()])
def test_all_fragments_together_are_the_whole(outer: Outer | None) -> None:
    whole, parts = server(), server()
    average(whole, stepped(whole, 1, 3), outer=outer)
    replicas = stepped(parts, 1, 3)
    average(parts, replicas, outer=outer, fragment=(0, 2))
    torch.testing.assert_close(parts.vector, torch.tensor([-0.2, 0.0]))
    torch.testing.assert_close(replicas[0].vector, torch.tensor([-0.2, -0.1]))
    average(parts, replicas, outer=outer, fragment=(1, 2))
    for vector in (parts.vector, replicas[0].vector, replicas[1].vector):
        torch.testing.assert_close(vector, whole.vector)


def test_a_delta_of_a_fragment_counts_from_its_last_exchange() -> None:
    target = server()
    (replica,) = stepped(target, 1)
    average(target, [replica], outer=Outer(), fragment=(0, 2))
    replica.step(ONES.clone())
    average(target, [replica], outer=Outer(), fragment=(0, 2))
    average(target, [replica], outer=Outer(), fragment=(1, 2))
    torch.testing.assert_close(target.vector, -0.2 * ONES)


def test_a_delayed_result_keeps_the_progress_made_meanwhile() -> None:
    target = server()
    one, two = stepped(target, 1, 3)
    average(target, [one, two], outer=Outer(), delay=2)
    torch.testing.assert_close(target.vector, -0.2 * ONES)
    torch.testing.assert_close(one.vector, -0.1 * ONES)
    one.step(ONES.clone())
    torch.testing.assert_close(one.vector, -0.2 * ONES)
    one.step(ONES.clone())
    torch.testing.assert_close(one.vector, (-0.3 - 0.1) * ONES)
    two.step(ONES.clone())
    average(target, [one, two], outer=Outer())
    # Since the exchange one has made two steps and two has made one, whose result it takes over before it contributes.
    torch.testing.assert_close(target.vector, (-0.2 - 0.15) * ONES)
    assert torch.equal(one.vector, target.vector)
    assert torch.equal(two.vector, target.vector)


def test_a_step_that_is_only_looked_at_changes_nothing() -> None:
    (replica,) = stepped(server(momentum=0.5), 1)
    seen = replica.stepped(ONES, 2.0)
    torch.testing.assert_close(replica.vector, -0.1 * ONES)
    replica.step(ONES.clone(), 2.0)
    assert torch.equal(replica.vector, seen)
