"""Replicas that train: gradients that are shared, parts that are given up, and what an evaluation sees."""

import torch

from polyrhythm.core import Sync
from tests.sim.test_gradients import ETA, job


def test_gradients_of_replicas_take_the_place_of_each_ones_own() -> None:
    driver = job()
    start = driver.numerics.parameters().clone()
    for worker in (0, 1):
        driver.step(worker, "replicas")
    steps = [driver.numerics.workers[worker].last for worker in (0, 1)]
    mean = sum(step.gradient.clone() for step in steps if step is not None) / 2
    driver.numerics.sync(Sync((0, 1)), [])
    for worker in (0, 1):
        moved = driver.numerics.workers[worker].parameters() - start
        torch.testing.assert_close(moved, -2 * ETA * mean)


def test_replicas_that_share_gradients_stay_as_far_apart_as_they_were() -> None:
    driver = job()
    driver.step(0, "replicas")
    tickets = [driver.step(worker, "replicas") for worker in (0, 1)]
    before = driver.numerics.workers[0].replica.vector - driver.numerics.server.vector  # type: ignore[union-attr]
    driver.numerics.sync(Sync(tuple(ticket.worker for ticket in tickets)), [])
    after = driver.numerics.workers[0].parameters() - driver.numerics.workers[1].parameters()
    torch.testing.assert_close(after, before)


def test_an_evaluation_leaves_the_last_step_open() -> None:
    driver, other = job(), job()
    for one in (driver, other):
        for worker in (0, 1):
            one.step(worker, "replicas")
    driver.numerics.evaluate()
    for one in (driver, other):
        one.numerics.sync(Sync((0, 1)), [])
    assert torch.equal(driver.numerics.parameters(), other.numerics.parameters())


def test_one_replica_is_evaluated_where_replicas_did_not_meet() -> None:
    driver = job()
    assert driver.numerics.evaluate().replica_accuracy is None
    for worker in (0, 1):
        driver.step(worker, "replicas")
    assert driver.numerics.evaluate().replica_accuracy is not None
    driver.numerics.sync(Sync((0, 1), "parameters"), [])
    assert driver.numerics.evaluate().replica_accuracy is None
    driver.step(0, "replicas")
    driver.numerics.sync(Sync((0, 1), "parameters"), [])
    driver.step(0, "replicas")
    assert driver.numerics.evaluate().replica_accuracy is None
    assert driver.numerics.evaluate().replica_accuracy is not None


def test_who_adopts_without_contributing_gives_up_its_steps() -> None:
    driver = job()
    for worker in (0, 1):
        driver.step(worker, "replicas")
    contributed = driver.numerics.workers[0].parameters()
    driver.numerics.sync(Sync((0,), "parameters", adopters=(0, 1)), [])
    for worker in (0, 1):
        torch.testing.assert_close(driver.numerics.workers[worker].parameters(), contributed)
    torch.testing.assert_close(driver.numerics.server.vector, contributed)
