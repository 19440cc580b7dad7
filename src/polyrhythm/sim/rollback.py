"""A simulated run that goes back when it diverges: to its last good moment, and on from there under BSP.

Moments are kept at every twentieth of the workload. The last good one is the latest that lies before the losses in
which the divergence was seen. From it nobody is started any more until the steps in flight have arrived, as at any
switch; then BSP takes over. What the lost stretch has cost stays in the run's time.
"""

import time
from typing import Any

import msgspec

from polyrhythm.core import Part, Policy, Stage
from polyrhythm.errors import UsageError
from polyrhythm.policies import BSP, Switch
from polyrhythm.policies._lib.relay import Relay
from polyrhythm.policies._lib.roll import Roll
from polyrhythm.policies.switch import SwitchState
from polyrhythm.sim.cluster.scenario import Scenario
from polyrhythm.sim.job import blank_result
from polyrhythm.sim.prefix import Prefix, RunSnapshot, complete, led_by
from polyrhythm.telemetry import EvalPoint, RunResult
from polyrhythm.training.divergence import LossWatch

MOMENTS = 20
"""How many moments are kept."""


def rolled_back(scenario: Scenario, policy: Policy[Any], seed: int, target: float | None = None) -> RunResult:
    """The run, and if it diverges the rest of it under BSP.

    Args:
        scenario, policy, seed, target: as in `simulate`.

    Returns:
        A result with `rolled_back_samples` above 0 if the run has gone back; its message says from where to where.
    """
    if not policy.traits.waits:
        raise UsageError(
            f"training.rollback cannot bring the workers of {policy.spec} to a stop, which wait for no answer; "
            "let them (esync: blocking=true), or set training.rollback = false"
        )
    started = time.perf_counter()
    if target is not None and scenario.training is not None:
        training = msgspec.structs.replace(scenario.training, target_accuracy=target)
        scenario = msgspec.structs.replace(scenario, training=training)
    prefix = Prefix(scenario, policy, seed)
    for number in range(1, MOMENTS):
        prefix.advance(number / MOMENTS)
    result = prefix.finish()
    if result.status == "diverged":
        result = gone_back(prefix, result)
    result.wall_s = time.perf_counter() - started
    return result


def gone_back(prefix: Prefix, lost: RunResult) -> RunResult:
    """The rest of a run that has diverged, from its last good moment on."""
    scenario, policy = prefix.scenario, prefix.policy
    unsure = 2 * LossWatch().window * scenario.batch_size
    snapshot = max(
        (kept for kept in prefix.kept if kept.engine.meter.samples <= lost.samples - unsure),
        key=lambda kept: kept.engine.meter.samples,
        default=prefix.kept[0],
    )
    samples, now_s = snapshot.engine.meter.samples, snapshot.now_s
    result = complete(handed_over(snapshot, policy), blank_result(scenario, policy, prefix.seed, None))
    result.rolled_back_samples += lost.samples - samples
    again = f"; {result.message}" if result.message else ""
    result.message = f"{lost.message}: went back from {lost.samples} samples to {samples}, and on under bsp{again}"
    delay(result, now_s, lost.duration_s - now_s)
    return result


def handed_over(snapshot: RunSnapshot, policy: Policy[Any]) -> RunSnapshot:
    """A copy of a run that BSP takes over as soon as nobody runs."""
    if not snapshot.recorder.entries:
        return led_by(snapshot.copy(), BSP(), BSP().init(snapshot.engine.job.cluster))
    cluster, roll = snapshot.engine.job.cluster, Roll()
    for event, decisions in snapshot.recorder.entries:
        roll = roll.after(event).carry_out(decisions)
    share = min(roll.processed / cluster.workload_samples, 0.999)
    relay = Relay(cluster, policy, None, roll, following=BSP())
    return led_by(snapshot.copy(), Switch((Part(policy, share), Part(BSP()))), SwitchState((Stage(BSP()),), relay))


def delay(result: RunResult, from_s: float, by_s: float) -> None:
    """All that is after a time happens later by the time that was lost."""
    result.duration_s += by_s
    result.samples_per_s = result.samples / result.duration_s if result.duration_s else 0.0
    result.curve = [later(point, by_s) if point.time_s > from_s else point for point in result.curve]
    if result.time_to_target_s is not None and result.time_to_target_s > from_s:
        result.time_to_target_s += by_s


def later(point: EvalPoint, by_s: float) -> EvalPoint:
    return EvalPoint(point.time_s + by_s, point.samples, point.updates, point.accuracy, point.loss)
