"""A run that diverges goes back and on under BSP."""

import pytest

from polyrhythm.errors import UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.sim import Device, Scenario, simulate
from polyrhythm.training.config import TrainingConfig


def scenario(rollback: bool, learning_rate: float = 0.05) -> Scenario:
    """BSP is stable at this rate; then ASP's part has a rate that is far too high."""
    training = TrainingConfig(
        task="digits", learning_rate=learning_rate, momentum=0.9, batch_size=4, samples=3_000, rollback=rollback
    )
    return Scenario(devices=[Device(count=4, compute_s=1.0)], training=training)


WILD = "switch:bsp@0.5,(tuned:asp,lr=400)"


def test_a_run_that_diverges_goes_back_and_ends_well() -> None:
    lost = simulate(scenario(rollback=False), parse_policy(WILD))
    saved = simulate(scenario(rollback=True), parse_policy(WILD))
    assert lost.status == "diverged"
    assert 1_500 < lost.samples < 3_000
    assert (saved.status, saved.samples) == ("ok", 3_000)
    assert 0 < saved.rolled_back_samples < lost.samples
    assert "and on under bsp" in saved.message
    assert (saved.final_accuracy or 0) > 0.5
    assert saved.duration_s > simulate(scenario(rollback=False), parse_policy("bsp")).duration_s
    times = [point.time_s for point in saved.curve]
    assert times == sorted(times)
    assert times[-1] == saved.duration_s


def test_workers_that_wait_for_no_answer_cannot_be_brought_to_a_stop() -> None:
    with pytest.raises(UsageError, match=r"let them \(esync: blocking=true\), or set training.rollback = false"):
        simulate(scenario(rollback=True), parse_policy("esync:blocking=false"))


def test_a_run_that_goes_well_is_what_it_is_without() -> None:
    one, other = (simulate(scenario(rollback), parse_policy("switch:bsp@0.5,asp")) for rollback in (False, True))
    one.wall_s = other.wall_s = 0.0
    assert one == other
