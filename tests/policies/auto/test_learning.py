"""Arms that change the gradients: kept where a sample brings enough, given up where it does not."""

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from polyrhythm.core import Policy, Trace
from polyrhythm.policies.asp import ASP
from polyrhythm.policies.auto.learning import Rung, TrialChoice, TrialLimits, harsher, least_points, worth_a_trial
from polyrhythm.policies.auto.outlook import StepView, bsp_s
from polyrhythm.policies.auto.policy import Auto
from polyrhythm.policies.auto.progress import LEAST_REFERENCE, LossPoint, LossPoints, progress
from polyrhythm.policies.diloco import DiLoCo
from polyrhythm.policies.k_group import KGroup
from polyrhythm.policies.local import LocalSGD
from polyrhythm.sim import Device, Faults, Limits, Network, Scenario, Straggler, simulate
from polyrhythm.training.config import TrainingConfig


def thin(workers: int, rate: float, exchange_s: float) -> Scenario:
    """Digits on workers whose exchange takes so many times as long as a step; `rate` is that of BSP's update."""
    return Scenario(
        devices=[Device(count=workers, compute_s=1.0)],
        network=Network(averaging="ring", averaging_s=exchange_s, latency_s=exchange_s / 2),
        training=TrainingConfig(
            batch_size=16,
            learning_rate=rate / workers,
            epochs=25,
            target_accuracy=0.92,
            eval_every_samples=16 * workers,
        ),
        limits=Limits(stop_at_target=True),
    )


def seconds(scenario: Scenario, policy: str) -> float:
    reached_s = simulate(scenario, policy).time_to_target_s
    assert reached_s is not None
    return reached_s


def test_thin_links_are_used_less_often_once_that_is_as_good(tmp_path: Path) -> None:
    scenario = thin(4, 0.06, exchange_s=4.0)
    ours = simulate(scenario, "auto:local", trace=tmp_path / "trace")
    assert ours.time_to_target_s is not None
    assert ours.time_to_target_s < 0.85 * seconds(scenario, "bsp")
    said = [remark for _, remark in Trace.load(tmp_path / "trace").remarks]
    assert "on trial" in said[0]
    assert any("kept" in remark for remark in said)


def test_a_kept_arm_goes_when_a_worker_becomes_so_slow_that_shares_are_better(tmp_path: Path) -> None:
    late = Faults(stragglers=[Straggler(workers=[0], start_step=50, slowdown=30.0)])
    simulate(
        msgspec.structs.replace(thin(4, 0.06, exchange_s=4.0), faults=late), "auto:local", trace=tmp_path / "trace"
    )
    said = [remark for _, remark in Trace.load(tmp_path / "trace").remarks]
    assert "kept" in said[1]
    assert "is given up, balanced is faster now" in said[2]


def test_near_the_edge_it_is_not_behind_bsp() -> None:
    scenario = thin(16, 1.0, exchange_s=3.0)
    assert seconds(scenario, "auto:async") < 1.02 * seconds(scenario, "bsp")


def test_a_loss_that_rises_ends_a_trial_at_once_and_no_other_follows(tmp_path: Path) -> None:
    """Local SGD is judged after two averages, unless nobody needs to wait for them."""
    simulate(thin(16, 1.0, exchange_s=3.0), "auto:async,risk=0.4", trace=tmp_path / "trace")
    tried, given_up = [remark for _, remark in Trace.load(tmp_path / "trace").remarks]
    assert "on trial" in tried
    assert given_up.endswith("is given up, its loss rises; the job goes back to where it began")


def test_a_trial_that_is_undone_costs_its_time_only() -> None:
    """As many samples bring BSP to the target as if there had been none."""
    scenario = thin(16, 1.0, exchange_s=3.0)
    ours, bsp = simulate(scenario, "auto:async,risk=0.4"), simulate(scenario, "bsp")
    assert ours.rolled_back_samples > 0
    assert ours.samples_to_target == bsp.samples_to_target
    assert ours.time_to_target_s is not None
    assert bsp.time_to_target_s is not None
    assert ours.time_to_target_s < 1.2 * bsp.time_to_target_s


def test_outer_momentum_is_expected_to_help_where_the_loss_falls_slowly() -> None:
    """And to harm where it falls fast; replicas that average often are apart by little."""
    outer, often, seldom = Rung(DiLoCo(16), 8.0), Rung(LocalSGD(2), 1.0), Rung(LocalSGD(32), 16.0)
    assert outer.likely(0.001) > 1.8
    assert outer.likely(0.2) < 0.6
    assert often.likely(0.05) > 0.95 > 0.6 > seldom.likely(0.05)


def falling(points: int, slope: float, first: int = 0) -> tuple[LossPoint, ...]:
    """Points a step apart, with some noise that is none in the mean of two."""
    return tuple(
        LossPoint(8.0 * step, slope * step + (0.01 if step % 2 else -0.01)) for step in range(first, first + points)
    )


ASYNC = ASP()

LATE = StepView([[1.0], [4.0]], [], 8, exchange_s=0.0, message_s=0.0)
"""ASP is 2.5 times as fast as BSP, which takes 4 s for a round."""


def tried(
    reference: tuple[LossPoint, ...], limit_s: float, policy: Policy[Any] = ASYNC, view: StepView = LATE
) -> TrialChoice | None:
    return worth_a_trial(view, bsp_s(view), TrialLimits(limit_s), reference, iter([Rung(policy, 1.0)]))


def test_an_arm_that_is_surely_faster_is_tried_at_once_for_nothing() -> None:
    found = tried(falling(6, -0.02), limit_s=0.0)
    assert found
    assert 0.7 < found.least < found.likely < 1


def test_an_arm_whose_delay_may_cost_too_much_is_not_trusted() -> None:
    assert not tried(falling(6, -0.2), limit_s=0.0)


def test_an_arm_is_not_trusted_where_the_loss_does_not_visibly_fall() -> None:
    assert not tried(falling(6, -0.0001), limit_s=0.0)


def test_an_arm_whose_messages_nobody_knows_is_trusted_if_it_is_fast_though_they_are_slow() -> None:
    """Servers take in and give out what all exchange."""
    slow = LATE._replace(exchange_s=8.0, message_s=0.1)
    assert not tried(falling(6, -0.02), limit_s=0.0, view=slow)
    assert tried(falling(6, -0.02), limit_s=0.0, policy=LocalSGD(4), view=slow)


def test_an_outer_optimizer_is_no_reason_for_trust() -> None:
    """Nothing is faster here but what its momentum may bring."""
    equal = LATE._replace(steps=[[1.0], [1.0]])
    assert not tried(falling(24, -0.02), limit_s=0.0, policy=DiLoCo(16), view=equal)


def test_an_arm_is_trusted_only_if_it_is_judged_early_enough() -> None:
    far = LATE._replace(exchange_s=20.0, exchanged=True)
    points, choices = falling(24, -0.01), [Rung(LocalSGD(32), 16.0)]
    found = [worth_a_trial(far, 24.0, TrialLimits(0.0, rounds), points, iter(choices)) for rounds in (63.0, 64.0)]
    assert [bool(one) for one in found] == [False, True]


def test_without_risk_nothing_is_tried(tmp_path: Path) -> None:
    simulate(thin(4, 0.06, exchange_s=4.0), "auto:async,risk=0", trace=tmp_path / "trace")
    assert not [remark for _, remark in Trace.load(tmp_path / "trace").remarks if "on trial" in remark]


def test_a_trial_that_has_to_be_paid_for_begins_once_it_can_show_something() -> None:
    """Of a policy whose speed nobody can tell, at once."""
    fast = LATE._replace(steps=[[1.0], [2.15]])
    few, many = falling(6, -0.1), falling(24, -0.05)
    found = [tried(many, limit_s, view=fast) for limit_s in (6.0, 40.0)]
    assert [one and one.least for one in found] == [None, 0.0]
    assert not tried(few, limit_s=40.0, view=LATE._replace(steps=[[1.0], [1.8]]))
    assert worth_a_trial(LATE, 4.0, TrialLimits(40.0), few, iter([Rung(KGroup(2), 0.0)]))


def test_nobody_trusts_what_the_user_has_added() -> None:
    added = iter([Rung(LocalSGD(64), 0.0)])
    assert not worth_a_trial(LATE._replace(exchange_s=8.0), 12.0, TrialLimits(0.0), falling(24, -0.001), added)


def test_as_much_as_before_is_worth_its_speed() -> None:
    shown = progress(falling(12, -0.1), LossPoints(falling(12, -0.1, first=12)))
    assert shown.likely == pytest.approx(1.0, abs=0.1)
    assert shown.verdict(1.0) == "open"
    assert shown.verdict(2.0) == "better"
    assert shown.verdict(2.0, exact=2.0) == "open", "no faster than the best exact policy"
    assert shown.verdict(2.0, exact=1.5) == "better", "surely faster than BSP, and likely than the other"
    assert shown.verdict(1.2, exact=1.0) == "open", "not surely faster than BSP"


def test_a_loss_that_stands_or_is_no_number_is_worse() -> None:
    flat = tuple(LossPoint(8.0 * step, -1.2) for step in range(12, 24))
    assert progress(falling(12, -0.1), LossPoints(flat)).verdict(2.0) == "worse"
    broken = LossPoints().add(math.nan, samples=8, size=2, most=8)
    assert progress(falling(12, -0.1), broken).verdict(100.0) == "worse"


def test_few_points_say_nothing() -> None:
    shown = progress(falling(LEAST_REFERENCE - 1, -0.1), LossPoints(falling(12, 0.0)))
    assert shown.verdict(9.0) == "open"


def test_a_kept_arm_is_seen_to_rise() -> None:
    assert LossPoints(falling(12, -0.1) + falling(12, 0.2, first=12)).rises
    assert not LossPoints(falling(24, -0.1)).rises


def test_a_kept_arm_is_seen_to_stand_still() -> None:
    """As it may near the end, where averages and late gradients are noise."""
    assert LossPoints(falling(24, -0.01) + tuple(LossPoint(8.0 * step, -0.11) for step in range(24, 48))).stands
    assert not LossPoints(falling(48, -0.005)).stands
    assert not LossPoints(falling(47, 0.0)).stands


def test_longer_rounds_are_not_tried_where_short_ones_have_failed() -> None:
    assert harsher(LocalSGD(8)) >= {"local:8", "local:16", "local:32", "diloco:16"}
    assert "local:4" not in harsher(LocalSGD(8))


def test_replicas_are_judged_after_two_averages() -> None:
    assert least_points(LocalSGD(16)) == 32


def test_what_a_trial_has_cost_unequal_shares_need_not_win_back_first(tmp_path: Path) -> None:
    """Else they could never be dealt again, and nothing else could win it back."""
    policy = Auto("async", risk=0.4)
    simulate(thin(16, 1.0, exchange_s=3.0), policy, trace=tmp_path / "trace")
    trace = Trace.load(tmp_path / "trace")
    state = policy.init(trace.header.cluster)
    for entry in trace.entries:
        state, _ = policy.decide(state, entry.event)
    guard = state.relay.inner.guard
    assert state.mind.saved_s < 0
    assert guard.spare_s >= 0.4 * guard.bsp_s > 0
