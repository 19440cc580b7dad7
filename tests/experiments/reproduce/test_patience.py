"""Runs that end as soon as they have converged."""

import msgspec
import pytest

from polyrhythm.sim import Device, Scenario, simulate
from polyrhythm.training.config import TrainingConfig
from polyrhythm_experiments.reproduce import Lab, Trial
from polyrhythm_experiments.reproduce.convergence import PATIENCE, accuracy, converged, log_likelihood
from polyrhythm_experiments.reproduce.patience import EndsBy, run_until

TRAINING = TrainingConfig(batch_size=32, learning_rate=0.1, samples=64 * 200, eval_every_samples=64)
SCENARIO = Scenario(devices=[Device(count=2, compute_s=1.0)], training=TRAINING)


def test_a_run_ends_with_the_evaluation_at_which_it_has_converged() -> None:
    whole = simulate(SCENARIO, "bsp")
    index, ours = run_until(7, SCENARIO, "bsp", 0, "accuracy")
    count = converged(whole.curve, accuracy)
    assert index == 7
    assert count is not None
    assert 2 * PATIENCE <= count < len(whole.curve)
    assert ours.curve == whole.curve[:count]
    assert ours.samples == whole.curve[count - 1].samples
    assert ours.wall_s > 0


def test_loss_may_stand_still_at_another_time() -> None:
    whole = simulate(SCENARIO, "bsp")
    _, ours = run_until(0, SCENARIO, "bsp", 0, "loss")
    assert len(ours.curve) == (converged(whole.curve, log_likelihood) or len(whole.curve))


def test_a_run_that_does_not_converge_has_its_whole_workload() -> None:
    training = msgspec.structs.replace(TRAINING, samples=64 * (2 * PATIENCE - 1))
    _, ours = run_until(0, msgspec.structs.replace(SCENARIO, training=training), "bsp", 0, "accuracy")
    assert ours.samples == training.samples


@pytest.mark.parametrize("until", ["accuracy", "loss"])
def test_a_lab_keeps_such_a_run_apart_from_a_whole_one(quick: Lab, until: EndsBy) -> None:
    plain, patient = Trial(SCENARIO, "bsp"), Trial(SCENARIO, "bsp", until=until)
    assert plain.made_from(0) != patient.made_from(0)
    runs = quick.run({"plain": plain, "patient": patient})
    assert runs["patient"][0].samples <= runs["plain"][0].samples
