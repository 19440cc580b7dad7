"""The same fault script in the simulator and at the coordinator: the same events, and the same decisions."""

from pathlib import Path
from typing import Any

import pytest

from polyrhythm import Device, Scenario, TimingWorkload, simulate
from polyrhythm.core import Entry, Proceed, Sync, Trace, replay
from polyrhythm.core.placement import runtime_placement
from polyrhythm.errors import PolicyError
from polyrhythm.policies import parse_policy
from polyrhythm.sim.cluster.compute import Compute
from polyrhythm.sim.cluster.faults import Faults, Straggler
from tests.runtime.paced_job import PacedJob

SAMPLES, FIRST, STEPS = 400, 12, 12
STEP_S = [1.0, 1 + 67 / 1024, 1 + 97 / 1024, 1 + 131 / 1024]
"""Exact in binary, and no two workers ever arrive at one time by themselves."""
LATE_S = 2 + 10 / 1024
LATE = {"compute": {"extra_compute_s": LATE_S}, "latency": {"extra_latency_s": LATE_S / 2}}
"""Two ways in which a worker is late by so much in a step: it computes for longer, or its two messages do."""
SWITCH = "(switch:bsp@0.5,asp)"
POLICIES = (
    f"elastic:{SWITCH},window=2,patience=1",
    f"elastic:{SWITCH},window=2,patience=1,back=served",
    f"elastic:{SWITCH},window=2,patience=1,probes=drop",
    f"elastic:{SWITCH},detector=sigma,window=2,patience=1,sliding=true",
    f"greedy:{SWITCH},window=2,patience=1",
    "greedy:(switch:bsp@0.5,asp,late=drop),window=2,patience=1",
    "kbandit",
    "kbandit:values=2/3,every=2",
    "rlp",
    "rlp:only=h",
)


def is_slow(rank: int, step: int) -> bool:
    return rank == 3 and FIRST <= step < FIRST + STEPS


def late_by(what: str) -> Any:
    """What a step costs while worker 3 is late, and when it is not."""

    def cost(rank: int, step: int) -> tuple[float, float]:
        extra_s = LATE_S if is_slow(rank, step) else 0.0
        return (STEP_S[rank] + extra_s, 0.0) if what == "compute" else (STEP_S[rank], extra_s)

    return cost


def simulated(policy: str, what: str, path: Path) -> tuple[Entry, ...]:
    straggler = Straggler(workers=[3], start_step=FIRST, steps=STEPS, **LATE[what])
    scenario = Scenario(
        devices=[Device(count=1, compute_s=step_s) for step_s in STEP_S],
        compute=Compute(cancelled="finishes"),
        workload=TimingWorkload(samples=SAMPLES, batch_size=1),
        faults=Faults(stragglers=[straggler]),
    )
    simulate(scenario, policy, trace=path)
    return Trace.load(path).entries


@pytest.mark.parametrize("what", LATE)
@pytest.mark.parametrize("policy", POLICIES)
def test_a_straggler_that_comes_and_goes_meets_the_same_decisions(policy: str, what: str, tmp_path: Path) -> None:
    job = PacedJob(policy, len(STEP_S), SAMPLES, late_by(what))
    job.run({})
    (trace,) = job.traced()
    assert trace.entries == simulated(policy, what, tmp_path / "trace.jsonl")
    assert set(job.applied.values()) == {1}
    assert len(job.applied) == SAMPLES


@pytest.mark.parametrize(
    "policy", ["elastic:(switch:local:4@0.5,asp)", "elastic:(local:4)", "greedy:(switch:local:4@0.5,asp)"]
)
def test_parts_on_replicas_beside_gradients_are_refused(policy: str) -> None:
    with pytest.raises(PolicyError, match="cannot run on real workers: coordinator decisions about steps on gradients"):
        runtime_placement(parse_policy(policy))


def together(entries: tuple[Entry, ...]) -> list[tuple[float, tuple[int, ...]]]:
    """When gradients were combined, and whose."""
    found = [(entry.event.time_s, d.workers) for entry in entries for d in entry.decisions if isinstance(d, Sync)]
    return [(time_s, tuple(sorted(workers))) for time_s, workers in found]


@pytest.mark.parametrize("what", LATE)
def test_elastic_leaves_the_late_worker_out_and_takes_it_back(what: str) -> None:
    job = PacedJob(POLICIES[0], len(STEP_S), SAMPLES, late_by(what))
    job.run({})
    updates = [workers for _, workers in together(job.traced()[0].entries) if len(workers) > 1]
    out = [number for number, workers in enumerate(updates) if workers == (0, 1, 2)]
    assert out
    assert updates[: out[0]] == [(0, 1, 2, 3)] * out[0]
    assert updates[-1] == (0, 1, 2, 3)


@pytest.mark.parametrize("what", LATE)
def test_greedy_goes_to_asp_while_somebody_is_late_and_comes_back(what: str) -> None:
    job = PacedJob(POLICIES[4], len(STEP_S), SAMPLES, late_by(what))
    job.run({})
    alone = [len(workers) == 1 for _, workers in together(job.traced()[0].entries)]
    changes = [number for number in range(1, len(alone)) if alone[number] != alone[number - 1]]
    assert not alone[0]
    assert len(changes) == 3  # to ASP, back to BSP, and to ASP when its share is served
    assert alone[-1]


@pytest.mark.parametrize("policy", ["kbandit:values=1/3,every=2,window=2", "rlp:only=h"])
def test_who_learns_decides_by_what_the_coordinator_hears(policy: str) -> None:
    job = PacedJob(policy, len(STEP_S), 4 * SAMPLES, late_by("compute"), losses=lambda number: 2.0 * 0.995**number)
    job.run({})
    (trace,) = job.traced()
    list(replay(parse_policy(policy), trace))
    groups = {len(d.workers) for entry in trace.entries for d in entry.decisions if isinstance(d, Proceed)}
    assert len(groups - {4}) >= 2, "several K were in force"
    assert set(job.applied.values()) == {1}
