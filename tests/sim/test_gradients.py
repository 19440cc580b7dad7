from functools import partial
from typing import Any, Literal

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from polyrhythm.core import Settings, Sync, Ticket
from polyrhythm.core.workload import SampleRange
from polyrhythm.errors import DataError, DivergedError, ScenarioError
from polyrhythm.sim.gradients import TrainedNumerics, build_numerics
from polyrhythm.sim.numerics import Numerics
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.task import Split, Task
from polyrhythm.training.gradient import Gradient, GradientRequest, PlainGradients, StackedGradients
from polyrhythm.training.models import seeded

ETA, SAMPLES = 0.1, 64
Kind = Literal["gradients", "replicas"]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def job(model: Any = mlp, workers: int = 2, **fields: Any) -> "Driver":
    generator = torch.Generator().manual_seed(0)
    split = Split(torch.randn(SAMPLES, 6, generator=generator), torch.arange(SAMPLES) % 3)
    task = Task("toy", split, split, partial(seeded, model))
    config = TrainingConfig(**{"learning_rate": ETA, "batch_size": 4, "samples": 1000, **fields})
    return Driver(TrainedNumerics(task, config, workers, seed=1))


class Driver:
    """Plays the engine: numbers the tickets and hands out sample ranges."""

    def __init__(self, numerics: TrainedNumerics) -> None:
        self.numerics = numerics
        self.started = 0

    def start(
        self, worker: int, kind: Kind = "gradients", settings: Settings | None = None, samples: int = 4
    ) -> Ticket:
        position = self.started * 4 % SAMPLES
        ticket = Ticket(worker, self.started, kind)
        self.started += 1
        self.numerics.start(ticket, SampleRange(0, position, position + samples), settings)
        return ticket

    def step(self, worker: int, kind: Kind = "gradients", settings: Settings | None = None) -> Ticket:
        ticket = self.start(worker, kind, settings)
        self.numerics.report(ticket)
        return ticket

    def apply(self, *tickets: Ticket) -> None:
        self.numerics.sync(Sync(tuple(ticket.worker for ticket in tickets)), list(tickets))

    def moved(self, settings: Settings | None = None, count: int = 1) -> float:
        """How far one update with `count` gradients goes, relative to eta times their mean."""
        before = self.numerics.parameters().clone()
        tickets = [self.step(worker, settings=settings) for worker in range(count)]
        mean = torch.stack([self.gradient(ticket) for ticket in tickets]).mean(0)
        self.apply(*tickets)
        return float((before - self.numerics.parameters()).norm() / (ETA * mean.norm()))

    def gradient(self, ticket: Ticket) -> torch.Tensor:
        gradient = self.numerics.steps[ticket].gradient
        assert gradient is not None
        return gradient.vector.clone()


def test_it_is_the_protocol() -> None:
    numerics: Numerics = job().numerics
    assert numerics.train_samples == SAMPLES


def test_a_probe_is_the_loss_of_the_global_parameters_on_the_same_samples() -> None:
    driver = job(learning_rate=0.5)
    numerics, seen = driver.numerics, []
    for _ in range(3):
        quality = PlainGradients(numerics.task.probing(numerics.seed), numerics.model).evaluate(
            numerics.parameters(), numerics.buffers
        )
        assert numerics.probe() == pytest.approx(quality.loss)
        seen.append(numerics.probe())
        driver.apply(driver.step(0))
    assert len(set(seen)) == 3


def test_a_gradient_is_that_of_the_parameters_which_the_step_read() -> None:
    driver, again = job(), job()
    slow, expected = driver.start(0), again.start(0)
    again.numerics.report(expected)
    for _ in range(3):
        driver.apply(driver.step(1))
    driver.numerics.report(slow)
    torch.testing.assert_close(driver.gradient(slow), again.gradient(expected))


@settings(derandomize=True, max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from(["apply", "void", "average"])), max_size=60))
def test_what_a_step_has_read_stays_while_it_is_in_flight(script: list[tuple[int, str]]) -> None:
    driver = job(workers=5)
    flying = {worker: driver.start(worker) for worker in range(5)}
    read = {ticket: driver.numerics.steps[ticket].parameters.clone() for ticket in flying.values()}
    for worker, action in script:
        ticket = flying[worker]
        if action == "void":
            driver.numerics.void([ticket])
        else:
            driver.numerics.report(ticket)
            driver.apply(ticket)
        if action == "average":
            driver.step(5 + worker, "replicas")
            driver.numerics.sync(Sync((5 + worker,), "parameters"), [])
        flying[worker] = driver.start(worker)
        read[flying[worker]] = driver.numerics.server.vector.clone()
        for other in flying.values():
            assert torch.equal(driver.numerics.steps[other].parameters, read[other])


@pytest.mark.parametrize("rows", [1, 8])
def test_computing_ahead_does_not_change_a_gradient(rows: int) -> None:
    driver, alone = job(), job()
    driver.numerics.gradients.rows, alone.numerics.gradients.rows = rows, 1
    for one in (driver, alone):
        tickets = [one.start(worker) for worker in (0, 1)]
        one.numerics.report(tickets[1])
        one.apply(tickets[1])
        one.numerics.report(tickets[0])
        one.apply(tickets[0])
    torch.testing.assert_close(driver.numerics.parameters(), alone.numerics.parameters())


@pytest.mark.parametrize(("convention", "one", "two"), [("linear", 1.0, 2.0), ("same", 1.0, 1.0)])
def test_the_rate_of_an_update_follows_the_convention(convention: str, one: float, two: float) -> None:
    driver = job(lr_convention=convention)
    assert driver.moved(count=1) == pytest.approx(one, rel=1e-3)
    assert driver.moved(count=2) == pytest.approx(two, rel=1e-3)


@pytest.mark.parametrize(("convention", "factor"), [("linear", 3), ("same", 1)])
def test_the_rate_of_a_local_step_follows_the_convention(convention: str, factor: int) -> None:
    driver = job(workers=3, lr_convention=convention)
    before = driver.numerics.parameters().clone()
    ticket = driver.start(0, "replicas")
    _, sq_norm = driver.numerics.report(ticket)
    assert sq_norm is not None
    moved = float((before - driver.numerics.parameters()).square().sum())
    assert moved == pytest.approx((factor * ETA) ** 2 * sq_norm, rel=1e-3)


def test_a_dead_worker_no_longer_counts_among_the_replicas() -> None:
    driver = job(workers=3)
    driver.step(0, "replicas")
    driver.step(1, "replicas")
    driver.numerics.leave(2)
    driver.numerics.leave(1)
    before = driver.numerics.parameters().clone()
    _, sq_norm = driver.numerics.report(driver.start(0, "replicas"))
    assert sq_norm is not None
    moved = float((before - driver.numerics.parameters()).square().sum())
    assert moved == pytest.approx(ETA**2 * sq_norm, rel=1e-3)


def test_settings_last_until_they_are_changed() -> None:
    driver = job()
    assert driver.moved(settings=Settings(lr_scale=0.5)) == pytest.approx(0.5, rel=1e-3)
    assert driver.moved() == pytest.approx(0.5, rel=1e-3)
    assert driver.moved(settings=Settings(lr_scale=2.0, batch_size=4)) == pytest.approx(2.0, rel=1e-3)
    driver.start(1, settings=Settings(momentum=0.0))
    assert driver.moved() == pytest.approx(2.0, rel=1e-3)


def test_the_schedule_counts_samples_that_were_processed_and_not_given_back() -> None:
    driver = job(samples=40, schedule="step", decay_at=(0.5,))
    for _ in range(4):
        driver.apply(driver.step(0))
    driver.numerics.void([driver.step(0)])
    assert driver.numerics.samples == 16
    assert driver.moved() == pytest.approx(1.0, rel=1e-3)
    assert driver.moved() == pytest.approx(0.1, rel=1e-3)


def test_local_steps_of_a_worker_that_dies_do_not_count() -> None:
    driver = job()
    driver.step(0, "replicas")
    driver.step(1, "replicas")
    driver.numerics.leave(1)
    assert driver.numerics.samples == 4


def test_a_cancelled_step_costs_nothing_and_leaves_no_trace() -> None:
    driver, quiet = job(normalised), job(normalised)
    calls: list[int] = []
    compute = driver.numerics.gradients.compute

    def counted(requests: list[GradientRequest]) -> list[Gradient]:
        calls.append(len(requests))
        return compute(requests)

    driver.numerics.gradients.compute = counted  # type: ignore[method-assign, assignment]
    driver.numerics.void([driver.start(1)])
    quiet.started += 1
    assert calls == []
    for one in (driver, quiet):
        one.apply(one.step(0))
    assert calls == [1]
    assert driver.numerics.steps == {}
    assert torch.equal(driver.numerics.parameters(), quiet.numerics.parameters())


def test_stacking_stops_while_too_much_of_it_is_abandoned() -> None:
    driver = job(workers=8)
    assert isinstance(driver.numerics.gradients, StackedGradients)
    for _ in range(10):
        tickets = [driver.start(worker) for worker in range(8)]
        driver.numerics.report(tickets[0])
        driver.apply(tickets[0])
        driver.numerics.void(tickets[1:])
    assert driver.numerics.computed < 30
    assert driver.numerics.wasted < 0.6 * driver.numerics.computed


def test_only_batches_of_one_size_are_stacked() -> None:
    driver = job()
    short, long = driver.start(0, samples=3), driver.start(1)
    driver.numerics.report(long)
    assert driver.numerics.steps[short].gradient is None
    assert driver.numerics.report(short).loss is not None


def test_averaging_sets_global_parameters_and_replicas() -> None:
    driver = job()
    for worker in (0, 1):
        driver.step(worker, "replicas")
    vectors = [driver.numerics.workers[w].parameters() for w in (0, 1)]
    mean = (vectors[0] + vectors[1]) / 2
    torch.testing.assert_close(driver.numerics.parameters(), mean)
    driver.numerics.sync(Sync((0, 1), "parameters"), [])
    torch.testing.assert_close(driver.numerics.server.vector, mean)
    assert torch.equal(driver.numerics.parameters(), driver.numerics.server.vector)


def test_deltas_go_a_share_of_the_way() -> None:
    full, half = job(), job(delta_rate=0.5)
    start = full.numerics.parameters().clone()
    for one in (full, half):
        one.step(0, "replicas")
        one.numerics.sync(Sync((0,), "deltas"), [])
    moved = [one.numerics.parameters() - start for one in (full, half)]
    torch.testing.assert_close(moved[1], 0.5 * moved[0])


def test_momentum_survives_a_switch_to_replicas_and_back() -> None:
    driver, plain = job(workers=1, momentum=0.9), job(workers=1, momentum=0.9)
    for _ in range(2):
        driver.apply(driver.step(0))
    for _ in range(2):
        driver.step(0, "replicas")
    driver.numerics.sync(Sync((0,), "parameters"), [])
    for _ in range(2):
        driver.apply(driver.step(0))
    for _ in range(6):
        plain.apply(plain.step(0))
    torch.testing.assert_close(driver.numerics.parameters(), plain.numerics.parameters())


def test_a_late_returner_does_not_turn_the_servers_momentum_back() -> None:
    driver = job(momentum=0.9)
    for worker in (0, 1):
        driver.step(worker, "replicas")
    driver.numerics.sync(Sync((0, 1), "parameters"), [])
    driver.apply(driver.step(0))
    late = driver.start(1)
    driver.apply(driver.step(0))
    expected = driver.numerics.server.optimizer.state().vectors["momentum_buffer"].values
    driver.numerics.report(late)
    gradient = driver.gradient(late)
    driver.apply(late)
    momentum = driver.numerics.server.optimizer.state().vectors["momentum_buffer"].values
    torch.testing.assert_close(momentum, 0.9 * expected + gradient)


def test_buffers_live_with_their_worker_and_evaluations_use_their_mean() -> None:
    driver = job(normalised)
    numerics = driver.numerics
    first = driver.start(0)
    driver.apply(driver.step(1))
    driver.apply(driver.step(1))
    numerics.report(first)
    mine, others = numerics.workers[0].buffers, numerics.workers[1].buffers
    assert [buffers.counters[0].item() for buffers in (mine, others)] == [1, 2]
    numerics.evaluate()
    torch.testing.assert_close(numerics.model.buffers, (mine.vector + others.vector) / 2)
    assert numerics.model.counters[0].item() == 2


def test_averaging_replicas_averages_their_buffers_and_a_newcomer_has_the_mean() -> None:
    driver = job(normalised, workers=3)
    for worker in (0, 1):
        driver.step(worker, "replicas")
    buffers = [driver.numerics.workers[worker].buffers.vector.clone() for worker in (0, 1)]
    driver.numerics.sync(Sync((0, 1), "parameters", (3.0, 1.0)), [])
    mean = 0.75 * buffers[0] + 0.25 * buffers[1]
    torch.testing.assert_close(driver.numerics.workers[0].buffers.vector, mean)
    driver.start(2)
    torch.testing.assert_close(driver.numerics.workers[2].buffers.vector, mean)


def test_the_last_buffers_stay_when_everyone_has_left() -> None:
    driver = job(normalised)
    driver.apply(driver.step(0))
    before = driver.numerics.evaluate()
    driver.numerics.leave(0)
    assert driver.numerics.evaluate() == before


def test_an_evaluation_changes_nothing() -> None:
    driver, quiet = job(normalised), job(normalised)
    for _ in range(3):
        for one in (driver, quiet):
            one.apply(one.step(0))
        driver.numerics.evaluate()
    assert torch.equal(driver.numerics.parameters(), quiet.numerics.parameters())
    assert driver.numerics.evaluate() == quiet.numerics.evaluate()


def test_a_loss_that_is_not_finite_is_one_clear_line() -> None:
    driver = job()
    driver.apply(driver.step(0))
    driver.numerics.server.assign(torch.full_like(driver.numerics.server.vector, float("nan")))
    ticket = driver.start(1)
    with pytest.raises(
        DivergedError, match=r"the loss of worker 1 is nan after 4 samples; lower training.learning_rate"
    ):
        driver.numerics.report(ticket)


def test_parameters_that_are_not_finite_are_one_clear_line() -> None:
    driver = job()
    driver.numerics.server.vector.fill_(float("inf"))
    with pytest.raises(DivergedError, match="the parameters are not finite after 0 samples"):
        driver.numerics.evaluate()


def test_a_configuration_is_built_with_its_data() -> None:
    numerics = build_numerics(TrainingConfig(train_samples=200, test_samples=50), workers=2, seed=0)
    assert numerics.train_samples == 200
    quality = numerics.evaluate()
    assert 0 <= quality.accuracy <= 1
    again = build_numerics(TrainingConfig(train_samples=200, test_samples=50), workers=2, seed=0)
    assert torch.equal(numerics.parameters(), again.parameters())
    with pytest.raises(ScenarioError, match="unknown optimizer"):
        build_numerics(TrainingConfig(optimizer="Addam"), workers=2, seed=0)
    with pytest.raises(DataError, match="does not exist"):
        build_numerics(TrainingConfig(task="cifar10", data="nowhere"), workers=2, seed=0)
