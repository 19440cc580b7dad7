import numpy as np
import pytest

from polyrhythm.doctor.outlook import Prospect, candidates, choose, prospects, scenario_of
from tests.doctor.jobs import EXCHANGE_S, drawn, job


def row(policy: str, gain: float, surely: float | None = None) -> Prospect:
    surely = gain if surely is None else surely
    price = "nothing" if policy in ("bsp", "balanced") else "something"
    return Prospect(
        policy=policy, samples_per_s=1.0, low=1.0, high=1.0, epoch_s=None, gain=gain, surely=surely, price=price
    )


def chosen(*rows: Prospect) -> str:
    (one,) = [made.policy for made in choose(rows) if made.chosen]
    return one


def test_the_job_as_it_is_stays_unless_another_policy_is_worth_it() -> None:
    assert chosen(row("bsp", 0.0), row("local:8", 0.09), row("asp", 0.04)) == "bsp"
    assert chosen(row("bsp", 0.0), row("asp", 0.5, surely=0.05)) == "bsp"


def test_of_nearly_equal_gains_the_cheaper_policy_is_chosen() -> None:
    assert chosen(row("bsp", 0.0), row("local:8", 0.48), row("asp", 0.5)) == "local:8"
    assert chosen(row("bsp", 0.0), row("local:8", 0.30), row("asp", 0.5)) == "asp"


def test_what_changes_no_gradient_comes_first() -> None:
    assert chosen(row("bsp", 0.0), row("balanced", 0.4), row("asp", 1.5)) == "balanced"
    assert chosen(row("bsp", 0.0), row("balanced", 0.02), row("asp", 1.5)) == "asp"


def test_shares_by_speed_gain_what_the_speeds_add_up_to() -> None:
    own_s = np.full((4, 60), 0.02)
    own_s[0] = 0.06
    rows = {made.policy: made for made in prospects(job(own_s), ["balanced"], seeds=2)}
    # Of 4 * 8 samples the slow one computes 3 and two of the others 10, which takes longest: 25 ms.
    assert rows["balanced"].gain == pytest.approx((0.06 + EXCHANGE_S) / (0.025 + EXCHANGE_S) - 1, rel=0.15)
    assert rows["balanced"].chosen
    assert (rows["balanced"].price, bool(rows["balanced"].assumed)) == ("nothing", True)


def test_the_simulator_gives_the_job_back_that_was_measured() -> None:
    own_s = drawn()
    own_s[3, 40:80] *= 3
    evidence = job(own_s)
    (today,) = prospects(evidence, ["bsp"])
    measured = 4 * 8 / evidence.step_s.mean()
    assert today.samples_per_s == pytest.approx(measured, rel=0.05)
    assert today.low <= today.samples_per_s <= today.high
    assert (today.price, today.assumed, today.chosen) == ("nothing", "", True)


def test_who_does_not_wait_gains_from_a_straggler() -> None:
    own_s = np.full((4, 60), 0.02)
    own_s[0] = 0.06
    rows = {made.policy: made for made in prospects(job(own_s), ["bsp", "local:8", "asp"], seeds=2)}
    message_s = EXCHANGE_S / 1.5
    pace = (3 / (0.02 + 2 * message_s) + 1 / (0.06 + 2 * message_s)) / 4 * (0.06 + EXCHANGE_S)
    assert rows["asp"].gain == pytest.approx(pace - 1, rel=0.05)
    assert rows["asp"].chosen
    assert "staleness" in rows["asp"].price
    assert rows["asp"].assumed
    assert not rows["local:8"].assumed


def test_a_slow_minute_stays_a_slow_minute() -> None:
    """Slow steps of two workers that come together cost less than the same steps at random."""
    own_s = np.full((4, 200), 0.02)
    own_s[0, 60:100] = own_s[1, 60:100] = 0.04
    (today,) = prospects(job(own_s), ["bsp"])
    assert today.samples_per_s == pytest.approx(4 * 8 / (0.024 + EXCHANGE_S), rel=0.05)


def test_dropping_counts_as_not_processed() -> None:
    (_, other) = prospects(job(np.full((4, 60), 0.02)), ["k-sync:3"], seeds=1)
    assert other.price == "25% of the gradients are dropped"
    there_and_back_s = 2 * EXCHANGE_S / 1.5
    assert other.gain == pytest.approx(0.75 * (0.02 + EXCHANGE_S) / (0.02 + there_and_back_s) - 1, abs=0.02)


def test_the_candidates_exist_for_any_number_of_workers() -> None:
    for workers in (2, 3, 64):
        assert scenario_of(job(drawn(workers, 30))).workers == workers
        assert candidates(workers, 8)[:2] == ["bsp", "balanced"]
    assert "balanced" not in candidates(4, None)
