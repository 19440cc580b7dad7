"""What other policies would make of a job: the evidence becomes a scenario, and the simulator runs it."""

from collections.abc import Sequence
from statistics import fmean

import msgspec
import numpy as np

from polyrhythm.core.placement import runtime_placement
from polyrhythm.doctor.costs import cost_by_size
from polyrhythm.doctor.evidence import Evidence
from polyrhythm.policies import parse_policy
from polyrhythm.sim import Compute, Device, Network, Scenario, TimingWorkload, sweep
from polyrhythm.sim.cluster.links import BYTES_PER_GIGABIT
from polyrhythm.telemetry import RunResult

SEEDS = 10
TODAY = "bsp"
WORTH = 0.10
"""Gain, after all doubt, from which another policy is worth its price."""

CLOSE = 0.05
"""Gains that differ by less are alike: the cheaper policy is chosen."""

STEPS = 120
"""Steps of each worker in a simulated run."""

CONSECUTIVE = 20
"""Measured steps that are played in a row."""

NOTHING = "nothing"
"""The price of a policy whose gradients are those of BSP."""

SHORTEST_S = 1e-6
"""The simulator knows no step that takes no time."""


class Prospect(msgspec.Struct, frozen=True, kw_only=True):
    """One policy as the simulator sees it on this job.

    Args:
        policy: its spec.
        samples_per_s: that count, mean over the seeds; what a policy drops does not count.
        low, high: the slowest and the fastest seed.
        epoch_s: time of an epoch; None where nobody knows how long one is.
        gain: over the job as it is, as a share.
        surely: the gain of the worst seed.
        price: what it is bought with.
        assumed: what the prediction takes for granted; empty inside the calibrated domain.
        chosen: the doctor's choice.
    """

    policy: str
    samples_per_s: float
    low: float
    high: float
    epoch_s: float | None
    gain: float
    surely: float
    price: str
    assumed: str = ""
    chosen: bool = False

    @property
    def exact(self) -> bool:
        """Whether the gradients are those of BSP."""
        return self.price == NOTHING


def candidates(workers: int, batch_size: int | None) -> list[str]:
    """Policies that are tried, from the cheapest to the costliest in what they do to the gradients.

    >>> candidates(4, 32)
    ['bsp', 'balanced', 'k-sync:3', 'local:8', 'local:32', 'ssp:3', 'asp']
    """
    shares = ["balanced"] if batch_size is not None and batch_size > 1 else []
    backup = [f"k-sync:{workers - 1}"] if workers > 2 else []
    return [TODAY, *shares, *backup, "local:8", "local:32", "ssp:3", "asp"]


def scenario_of(evidence: Evidence) -> Scenario:
    """The job as a scenario: each worker's steps in the order in which they were made, and the exchange by its size.

    One job under BSP does not tell what a message to a server costs beside its bytes. It is taken that there and back
    cost as much beside them as one all-reduce does.
    """
    own_s = np.maximum(evidence.own_s, SHORTEST_S)
    cost = cost_by_size(evidence)
    batch = evidence.batch_size or 1
    return Scenario(
        name="job",
        source="measured by polyrhythm doctor",
        devices=[
            Device(compute_s=fmean(row), bandwidth_gbps=rate / BYTES_PER_GIGABIT)
            for row, rate in zip(own_s.tolist(), cost.bytes_per_s.tolist(), strict=True)
        ],
        compute=Compute(
            distribution="measured",
            measured_s=own_s.tolist(),
            consecutive=min(CONSECUTIVE, evidence.steps),
            cancelled="finishes",
        ),
        network=Network(
            averaging="ring",
            averaging_s=cost.fixed_s,
            latency_s=cost.fixed_s / 2,
            message_bytes=cost.message_bytes,
        ),
        # Real workers begin each epoch together.
        epoch_end_s=None if evidence.epoch_samples is None else 0.0,
        workload=TimingWorkload(
            batch_size=batch, samples=batch * len(own_s) * STEPS, dataset_samples=evidence.epoch_samples
        ),
    )


def prospects(evidence: Evidence, policies: Sequence[str] = (), seeds: int = SEEDS) -> list[Prospect]:
    """The table: every policy on this job, with the choice."""
    scenario = scenario_of(evidence)
    specs = [parse_policy(spec).spec for spec in policies or candidates(len(evidence.ranks), evidence.batch_size)]
    specs = [TODAY, *(spec for spec in specs if spec != TODAY)]
    results = sweep(scenario, specs, range(seeds), jobs=1)
    runs = {spec: [run for run in results if run.policy == spec and run.status == "ok"] for spec in specs}
    today = [run.samples_per_s for run in runs[TODAY]]
    rows = [prospect(spec, made, today, evidence) for spec, made in runs.items() if made]
    return choose(rows)


def prospect(spec: str, runs: Sequence[RunResult], today: Sequence[float], evidence: Evidence) -> Prospect:
    rates = [run.samples_per_s for run in runs]
    mean = fmean(rates)
    return Prospect(
        policy=spec,
        samples_per_s=mean,
        low=min(rates),
        high=max(rates),
        epoch_s=evidence.epoch_samples / mean if evidence.epoch_samples else None,
        gain=mean / fmean(today) - 1,
        surely=min(rate / now for rate, now in zip(rates, today, strict=True)) - 1,
        price=price(runs),
        assumed=assumed(spec),
    )


def assumed(spec: str) -> str:
    """What one job under BSP does not tell of a policy; nothing if it needs equal mini-batches and all-reduces only.

    >>> assumed("bsp"), assumed("balanced")
    ('', 'a step takes as long as it has samples')
    """
    policy = parse_policy(spec)
    if policy.traits.shares:
        return "a step takes as long as it has samples"
    return "a byte to a server costs what it costs in an all-reduce" if runtime_placement(policy) == "servers" else ""


def price(runs: Sequence[RunResult]) -> str:
    """What a policy does to the gradients.

    >>> run = RunResult(scenario="", policy="asp", seed=0, workers=4, batch_size=1, staleness_mean=2.9, staleness_max=7)
    >>> price([run])
    'staleness 2.9, at most 7'
    """
    dropped = fmean(run.gradients_dropped / max(1, run.gradients_computed) for run in runs)
    if dropped > 0:
        return f"{dropped:.0%} of the gradients are dropped"
    stale = [run.staleness_mean for run in runs if run.staleness_mean]
    if stale:
        return f"staleness {fmean(stale):.1f}, at most {max(run.staleness_max or 0 for run in runs)}"
    apart = [run.lssr for run in runs if run.lssr]
    return f"{fmean(apart):.0%} of the steps are local" if apart else NOTHING


def choose(rows: Sequence[Prospect]) -> list[Prospect]:
    """The rows with one chosen: the cheapest that gains nearly as much as the best; today's if none is worth it.

    What changes no gradient comes before all that does, however much more that gains.
    """
    worth = [row for row in rows if row.surely >= WORTH]
    worth = [row for row in worth if row.exact] or worth
    best = max((row.gain for row in worth), default=0.0)
    chosen = next((row for row in worth if row.gain >= best - CLOSE), rows[0] if rows else None)
    return [msgspec.structs.replace(row, chosen=row is chosen) for row in rows]
