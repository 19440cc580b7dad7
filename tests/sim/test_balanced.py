"""Balanced BSP through the engine: its parity with BSP and with one process, and how near it comes to all speeds."""

from pathlib import Path
from typing import Any, ClassVar

import msgspec
import pytest
import torch

from polyrhythm.core import Cluster, Decisions, Event, Joined, Proceed, Report, Sync, Trace, Traits
from polyrhythm.errors import ScenarioError
from polyrhythm.policies import BSP, Balanced, parse_policy
from polyrhythm.sim import Compute, Device, Faults, Join, Leave, Network, Scenario, Straggler, TimingWorkload, simulate
from polyrhythm.sim.engine import Engine
from polyrhythm.sim.gradients import TrainedNumerics
from polyrhythm.sim.job import build_job
from polyrhythm.telemetry import Meter
from tests.sim.clusters import Recorder
from tests.sim.test_parity import ADAM, BATCH, ETA, MOMENTUM, SEED, SGD, assert_same, bare, config, toy, trained

FAST, SLOW = 1.0, 3.5
GENERATIONS = [Device(count=4, compute_s=FAST), Device(count=4, compute_s=SLOW)]
ROUND = 8 * 64


@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM, ADAM])
@pytest.mark.parametrize("batch_size", [BATCH, 5])
def test_balanced_on_equal_workers_is_bsp_to_the_bit(optimizer: dict[str, Any], batch_size: int) -> None:
    """Also where epochs do not divide evenly."""
    ours, theirs = (trained(policy, equal=True, **optimizer, batch_size=batch_size) for policy in ("balanced", "bsp"))
    assert torch.equal(ours, theirs)


class Fixed(BSP):
    """Shares that are given, from the first round on."""

    traits: ClassVar[Traits] = Balanced.traits
    shares: ClassVar[tuple[int, ...]] = (7, 1, 5, 3)

    def decide(self, state: Any, event: Event) -> tuple[Any, Decisions]:
        state, decisions = super().decide(state, event)
        return state, tuple(self._dealt(decision) for decision in decisions)

    def _dealt(self, decision: Any) -> Any:
        shares = tuple(self.shares[worker] for worker in decision.workers)
        if isinstance(decision, Sync):
            return Sync(decision.workers, weights=tuple(map(float, shares)))
        return Proceed(decision.workers, shares=shares)


@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM, ADAM])
@pytest.mark.parametrize("epoch_end_s", [None, 0.5])
def test_any_shares_are_one_process_with_the_whole_batch(optimizer: dict[str, Any], epoch_end_s: float | None) -> None:
    training = config(**optimizer)
    numerics = TrainedNumerics(toy(), training, 4, SEED)
    scenario = Scenario(devices=[Device(count=4, compute_s=1.0)], training=training, epoch_end_s=epoch_end_s)
    Engine(build_job(scenario, Fixed(), numerics, SEED), Meter(None)).run()
    assert_same(numerics.parameters(), bare(4 * BATCH, 4 * ETA, **optimizer))


def test_shares_that_are_learned_are_one_process_with_the_whole_batch() -> None:
    """The workers of `trained` differ in speed, and every step varies."""
    assert_same(trained("balanced"), bare(4 * BATCH, 4 * ETA))


def rounds(tmp_path: Path, *, samples: int = 60 * ROUND, policy: str = "balanced", **fields: Any) -> list[float]:
    """When each round was over."""
    path = tmp_path / "trace.jsonl"
    scenario = Scenario(workload=TimingWorkload(batch_size=64, samples=samples), **{"devices": GENERATIONS, **fields})
    simulate(scenario, policy, trace=path)
    entries = Trace.load(path).entries
    return [event.time_s for event, decisions in entries if any(isinstance(d, Sync) for d in decisions)]


def speed(ends_s: list[float], first: int, last: int) -> float:
    """Mini-batches a second from one round to another."""
    return 8 * (last - first) / (ends_s[last - 1] - ends_s[first - 1])


EVERYONE = 4 / FAST + 4 / SLOW


def test_two_generations(tmp_path: Path) -> None:
    ends_s = rounds(tmp_path)
    assert speed(ends_s, 20, 60) >= 0.95 * EVERYONE
    assert speed(rounds(tmp_path, policy="bsp"), 20, 60) == pytest.approx(8 / SLOW)


@pytest.mark.parametrize("deviation", [0.05, 0.1])
def test_two_generations_with_noise(tmp_path: Path, deviation: float) -> None:
    """A round lasts as long as the slowest of eight, who is late by chance alone; nothing makes up for that."""
    compute = Compute(distribution="normal", deviation=deviation)
    ends_s = rounds(tmp_path, compute=compute)
    alike = rounds(tmp_path, compute=compute, policy="bsp", devices=[Device(count=8, compute_s=8 / EVERYONE)])
    assert speed(ends_s, 20, 60) >= 0.95 * speed(alike, 20, 60)


def test_a_straggler_that_comes_and_goes(tmp_path: Path) -> None:
    straggler = Straggler(workers=[0], start_step=30, steps=40, slowdown=4.0)
    ends_s = rounds(tmp_path, samples=120 * ROUND, faults=Faults(stragglers=[straggler]))
    assert speed(ends_s, 20, 30) >= 0.95 * EVERYONE
    assert speed(ends_s, 50, 70) >= 0.95 * (EVERYONE - 0.75 / FAST)
    assert speed(ends_s, 90, 118) >= 0.95 * EVERYONE


def test_a_death_and_a_return(tmp_path: Path) -> None:
    faults = Faults(leaves=[Leave(worker=0, time_s=60.0, back_after_s=60.0)])
    ends_s = rounds(tmp_path, samples=100 * ROUND, faults=faults)
    dead, back = (next(i for i, end_s in enumerate(ends_s) if end_s > time_s) for time_s in (60.0, 120.0))
    assert speed(ends_s, dead + 2, back - 1) * 7 / 8 >= 0.95 * (EVERYONE - 1 / FAST)
    assert speed(ends_s, back + 15, back + 30) >= 0.95 * EVERYONE


def test_a_newcomer(tmp_path: Path) -> None:
    ends_s = rounds(tmp_path, samples=80 * ROUND, faults=Faults(joins=[Join(worker=7, time_s=60.0)]))
    assert speed(ends_s, 60, 78) >= 0.95 * EVERYONE


def test_a_slow_link_cannot_be_balanced_away() -> None:
    """Most of a round is the exchange: what shares could win is not worth a change."""
    network = Network(message_bytes=1e9, averaging="ring")
    devices = [Device(count=2, compute_s=1.0, bandwidth_gbps=0.1), Device(count=2, compute_s=1.5, bandwidth_gbps=0.1)]
    workload = TimingWorkload(batch_size=64, samples=60 * 4 * 64)
    results = [simulate(Scenario(devices=devices, network=network, workload=workload), p) for p in ("balanced", "bsp")]
    assert results[0].policy_figures["changes"] == 0
    assert results[0].duration_s == results[1].duration_s


def test_equal_workers_have_the_trace_of_bsp(tmp_path: Path) -> None:
    scenario = Scenario(
        devices=[Device(count=3, compute_s=1.0)],
        epoch_end_s=0.5,
        workload=TimingWorkload(batch_size=8, samples=500, dataset_samples=100),
    )
    for policy in ("balanced", "bsp"):
        simulate(scenario, policy, trace=tmp_path / policy)
    ours, theirs = (Trace.load(tmp_path / policy).entries for policy in ("balanced", "bsp"))
    assert ours == theirs


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"partition": "seldp"}, "training.partition is 'seldp'; use 'shared'"),
        ({"injection": (0.5, 0.5)}, r"training.injection is \[0.5, 0.5\]; leave it out"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(fields: dict[str, Any], reason: str) -> None:
    scenario = Scenario(devices=GENERATIONS, training=config(**fields))
    with pytest.raises(ScenarioError, match=f"policy balanced deals the mini-batches .* shares, but {reason}"):
        simulate(scenario, "balanced")


@pytest.mark.parametrize("epoch_end_s", [None, 0.5])
def test_every_sample_is_processed_once(epoch_end_s: float | None) -> None:
    scenario = Scenario(
        devices=[Device(compute_s=1.0), Device(compute_s=2.0), Device(compute_s=5.0)],
        epoch_end_s=epoch_end_s,
        faults=Faults(leaves=[Leave(worker=1, time_s=13.0, back_after_s=9.0)]),
        workload=TimingWorkload(batch_size=8, samples=1000, dataset_samples=101),
    )
    result = simulate(scenario, "balanced")
    assert result.samples == 1000
    assert result.status == "ok"


def test_a_newcomer_takes_part_with_an_equal_share() -> None:
    policy = Balanced()
    state, _ = policy.decide(policy.init(Cluster(2, 8)), Joined((0, 1), 0.0))
    for clock in range(1, 7):
        for worker, step_s in ((0, 1.0), (1, 3.0)):
            state, decisions = policy.decide(state, Report(worker, clock, 3.0 * clock, samples=8, step_s=step_s))
    assert decisions[-1] == Proceed((0, 1), shares=(12, 4))
    state, decisions = policy.decide(state, Joined((2,), 16.0, 5))
    assert decisions == (Proceed((2,)),)


def rounds_of(policy: str, path: Path) -> list[int]:
    """Samples of each round."""
    workload = TimingWorkload(batch_size=16, samples=40 * 64, dataset_samples=150)
    simulate(Scenario(devices=[Device(count=3), Device(compute_s=3.0)], workload=workload), policy, trace=path)
    rounds = [0]
    for event, decisions in Trace.load(path).entries:
        rounds[-1] += event.samples if isinstance(event, Report) else 0
        rounds += [0] if any(isinstance(decision, Sync) for decision in decisions) else []
    return rounds


def test_a_round_has_the_samples_of_bsp_also_where_an_epoch_ends(tmp_path: Path) -> None:
    """Otherwise two runs of equal gradients part at the first end of an epoch, and chance decides which is faster."""
    assert rounds_of("balanced", tmp_path / "ours")[:39] == rounds_of("bsp", tmp_path / "theirs")[:39]


@pytest.mark.parametrize(("straggler", "out"), [({"slowdown": 4.0}, False), ({"extra_latency_s": 2.0}, True)])
def test_elastic_leaves_out_whom_no_share_makes_fast_enough(straggler: dict[str, float], out: bool) -> None:
    """The slow computer arrives with the others, in a smaller share; behind a slow link even one sample is late."""
    slow = msgspec.convert({"workers": [3], "start_s": 20.0, "duration_s": 80.0, **straggler}, Straggler)
    scenario = Scenario(
        devices=[Device(count=4, compute_s=1.0)],
        workload=TimingWorkload(batch_size=16, samples=16 * 4 * 100),
        faults=Faults(stragglers=[slow]),
    )
    log: list[tuple[Event, Decisions]] = []
    elastic = simulate(scenario, Recorder(parse_policy("elastic:(balanced)"), log))
    members = [len(d.workers) for _, decisions in log for d in decisions if isinstance(d, Sync)]
    bsp_s, balanced_s = (simulate(scenario, parse_policy(spec)).duration_s for spec in ("bsp", "balanced"))
    assert elastic.samples == 16 * 4 * 100
    if out:
        assert min(members) == 3
        assert members[-8:].count(4) > 4, "it is back"
        assert elastic.duration_s < min(bsp_s, balanced_s)
    else:
        assert min(members) == 4
        assert elastic.duration_s == balanced_s


@pytest.mark.parametrize("policy", ["balanced", "balanced:risk=0.02", "auto"])
def test_a_slow_link_takes_as_long_whatever_the_share(policy: str) -> None:
    """Of 4 workers with steps of 1 s one has 0.3 s more a message: BSP takes 1.6 s a round, 18, 18, 19 and 9 samples
    1.19 s, and the first rounds are equal.
    """
    faults = Faults(stragglers=[Straggler(workers=[3], start_s=0.0, extra_latency_s=0.3)])
    workload = TimingWorkload(batch_size=16, samples=16 * 4 * 60)
    devices, network = [Device(count=4, compute_s=1.0)], Network(message_bytes=1.0)
    scenario = Scenario(devices=devices, workload=workload, network=network, faults=faults)
    assert simulate(scenario, policy).duration_s < 60 * 1.3
