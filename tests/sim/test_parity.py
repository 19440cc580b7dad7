"""Laws of parity at the level of parameters: what must come out the same, does, through the engine."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from polyrhythm.core.workload import Workload
from polyrhythm.policies import parse_policy
from polyrhythm.sim import Compute, Device, Faults, Join, Scenario
from polyrhythm.sim.engine import Engine
from polyrhythm.sim.gradients import TrainedNumerics
from polyrhythm.sim.job import build_job
from polyrhythm.telemetry import Meter
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.task import Split, Task, cross_entropy, epoch_order
from polyrhythm.training.models import seeded
from polyrhythm.training.optimizer import optimizer_class

SAMPLES, BATCH, ETA, SEED = 96, 4, 0.05, 5
SGD: dict[str, Any] = {}
MOMENTUM: dict[str, Any] = {"momentum": 0.9, "weight_decay": 0.01}
ADAM: dict[str, Any] = {"optimizer": "Adam"}
ONE_WORKER = ["bsp", "asp", "ssp:0", "ssp:3", "dssp", "k-sync:1", "k-batch-sync:1", "k-async:1", "k-batch-async:1"]
ONE_WORKER += [
    "k-group:1",
    "local:1",
    "local:8",
    "post-local:4,at=0.5",
    "selsync:0.3",
    "selsync:0.3,aggregate=gradients",
]
ONE_WORKER += ["esync", "esync:blocking=false", "fedavg:1,0.2", "diloco:4,lr=1,momentum=0"]
ONE_WORKER += ["diloco:4,lr=1,momentum=0,fragments=2,overlap=3"]


def mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 5))


def tanh() -> nn.Module:
    """A model that is not stacked."""
    return nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 5))


def toy(model: Any = mlp) -> Task:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(SAMPLES, 1, 3, 4, generator=generator)
    split = Split(inputs, inputs.flatten(1)[:, :5].argmax(1))
    return Task("toy", split, split, partial(seeded, model))


def config(**fields: Any) -> TrainingConfig:
    return TrainingConfig(**{"learning_rate": ETA, "batch_size": BATCH, "samples": 3 * SAMPLES, **fields})


def trained(
    policy: str,
    workers: int = 4,
    *,
    task: Task | None = None,
    equal: bool = False,
    late: tuple[int, ...] = (),
    **fields: Any,
) -> Tensor:
    """Parameters at the end of a run; unless they are equal, the workers differ in speed and every step varies."""
    devices = [Device(compute_s=1.0 if equal else 1.0 + 0.3 * worker) for worker in range(workers)]
    compute = Compute() if equal else Compute(distribution="normal", deviation=0.2)
    training = config(**fields)
    numerics = TrainedNumerics(task or toy(), training, workers, SEED)
    faults = Faults(joins=[Join(worker=worker, time_s=1e6) for worker in late])
    scenario = Scenario(devices=devices, compute=compute, training=training, faults=faults)
    job = build_job(scenario, parse_policy(policy), numerics, SEED)
    assert job.workload == Workload(SAMPLES, 3 * SAMPLES)
    Engine(job, Meter(None)).run()
    return numerics.parameters()


def bare(batch: int, rate: float, decay_at: float = 3.0, task: Task | None = None, **fields: Any) -> Tensor:
    """Parameters after plain PyTorch training on the same samples in the same order."""
    task = task or toy()
    module = task.build(SEED)
    kind = optimizer_class(fields.pop("optimizer", "SGD"))
    optimizer = kind(module.parameters(), lr=rate, **fields)  # type: ignore[call-arg]
    for start in range(0, 3 * SAMPLES, batch):
        epoch, position = divmod(start, SAMPLES)
        indices = epoch_order(SAMPLES, SEED, epoch)[position : position + batch]
        optimizer.param_groups[0]["lr"] = rate * (0.1 if start >= decay_at * SAMPLES else 1.0)
        optimizer.zero_grad()
        cross_entropy(module(task.train.inputs[indices]), task.train.targets[indices]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in module.parameters()])


def assert_same(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM, ADAM])
@pytest.mark.parametrize(("convention", "factor"), [("linear", 4), ("same", 1)])
def test_bsp_is_one_process_with_the_whole_batch(optimizer: dict[str, Any], convention: str, factor: int) -> None:
    assert_same(trained("bsp", lr_convention=convention, **optimizer), bare(4 * BATCH, factor * ETA, **optimizer))


def test_bsp_decays_where_one_process_does() -> None:
    ours = trained("bsp", schedule="step", decay_at=(0.5,))
    assert_same(ours, bare(4 * BATCH, 4 * ETA, decay_at=1.5))


@pytest.mark.parametrize("policy", ONE_WORKER)
@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM, ADAM])
def test_any_policy_with_one_worker_is_plain_training(policy: str, optimizer: dict[str, Any]) -> None:
    assert_same(trained(policy, workers=1, **optimizer), bare(BATCH, ETA, **optimizer))


@pytest.mark.parametrize("policy", ["asp", "local:8", "bsp"])
def test_the_schedule_of_one_worker_is_that_of_plain_training(policy: str) -> None:
    assert_same(trained(policy, workers=1, schedule="step", decay_at=(0.5,)), bare(BATCH, ETA, decay_at=1.5))


@pytest.mark.parametrize("convention", ["linear", "same"])
@pytest.mark.parametrize("schedule", [{}, {"schedule": "step", "decay_at": (0.4,)}, {"schedule": "cosine"}])
def test_local_sgd_of_one_step_is_bsp(convention: str, schedule: dict[str, Any]) -> None:
    fields = {"lr_convention": convention, **schedule}
    assert_same(trained("local:1", **fields), trained("bsp", **fields))


def test_workers_that_have_not_joined_do_not_count() -> None:
    assert_same(trained("local:1", late=(2, 3), equal=True), trained("bsp", late=(2, 3), equal=True))


@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM])
def test_policies_that_are_another_one_give_its_parameters(optimizer: dict[str, Any]) -> None:
    bsp, asp = trained("bsp", **optimizer), trained("asp", **optimizer)
    for policy in ("k-sync:4", "backup:0"):
        assert torch.equal(trained(policy, **optimizer), bsp), policy
    for policy in ("k-async:1", "k-batch-async:1", "ssp:inf", "k-group:1", "ringmaster:1000"):
        assert torch.equal(trained(policy, **optimizer), asp), policy
    assert not torch.allclose(asp, bsp, atol=1e-3)


@pytest.mark.parametrize("fields", [{}, {"lr_convention": "same", "schedule": "step", "decay_at": (0.4,)}])
def test_selsync_at_delta_zero_is_bsp(fields: dict[str, Any]) -> None:
    bsp = trained("bsp", **fields)
    assert_same(trained("selsync:0", **fields), bsp)
    assert_same(
        trained("selsync:0,aggregate=gradients", momentum=0.9, **fields), trained("bsp", momentum=0.9, **fields)
    )
    assert not torch.allclose(trained("selsync:inf", **fields), bsp, atol=1e-3)


def test_a_threshold_that_never_fires_averages_replicas_that_never_met() -> None:
    """As FedAvg whose first round is longer than the job."""
    assert_same(trained("selsync:inf", equal=True), trained("fedavg:1,99", equal=True))


def test_fedavg_of_all_in_every_step_is_local_sgd() -> None:
    assert torch.equal(trained("fedavg:1,1e-9"), trained("local:1"))
    assert not torch.allclose(trained("fedavg:0.5,1e-9"), trained("local:1"), atol=1e-3)


@pytest.mark.parametrize("optimizer", [SGD, MOMENTUM])
def test_diloco_at_rate_one_is_local_sgd(optimizer: dict[str, Any]) -> None:
    assert_same(trained("diloco:3,lr=1,momentum=0", **optimizer), trained("local:3", **optimizer))
    assert not torch.allclose(trained("diloco:3", **optimizer), trained("local:3", **optimizer), atol=1e-3)


def test_esync_on_equal_workers_is_local_sgd_of_one_step() -> None:
    assert_same(trained("esync", equal=True), trained("local:1", equal=True))
    assert not torch.allclose(trained("esync"), trained("local:1"), atol=1e-3)


def test_uniform_weights_are_those_of_equally_many_steps() -> None:
    uniform = trained("esync", equal=True)
    for weights in ("samples", "inverse", "normalised"):
        assert_same(trained(f"esync:{weights}", equal=True), uniform)
        assert not torch.allclose(trained(f"esync:{weights}"), trained("esync"), atol=1e-3)


def test_fragments_and_delays_change_the_result_but_one_part_at_once_does_not() -> None:
    plain = trained("diloco:4,lr=1,momentum=0")
    assert torch.equal(trained("diloco:4,lr=1,momentum=0,fragments=1,overlap=0"), plain)
    for spec in ("fragments=2", "overlap=2", "fragments=4,overlap=1"):
        assert not torch.allclose(trained(f"diloco:4,lr=1,momentum=0,{spec}"), plain, atol=1e-3), spec


def test_dssp_with_one_bound_is_ssp() -> None:
    assert torch.equal(trained("dssp:2,2"), trained("ssp:2"))


def test_post_local_sgd_is_its_first_phase_or_its_second() -> None:
    assert torch.equal(trained("post-local:4,at=1"), trained("bsp"))
    assert_same(trained("post-local:4,at=0"), trained("local:4"))


@pytest.mark.parametrize("compensation", ["dc-asgd:lambda=0", "dc-asgd-adaptive:lambda=0"])
def test_no_compensation_is_asp(compensation: str) -> None:
    assert torch.equal(trained("asp", compensation=compensation), trained("asp"))


@pytest.mark.parametrize("compensation", ["lr-staleness", "dc-asgd:lambda=1", "dc-asgd-adaptive:lambda=1"])
def test_compensation_changes_asp_and_leaves_bsp_alone(compensation: str) -> None:
    assert not torch.allclose(trained("asp", compensation=compensation), trained("asp"), atol=1e-5)
    assert_same(trained("bsp", compensation=compensation), trained("bsp"))


@pytest.mark.parametrize("policy", ["bsp", "asp", "k-sync:2", "k-batch-sync:4", "k-async:2", "local:4"])
def test_stacked_gradients_train_as_plain_ones_do(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stacked = trained(policy)
    monkeypatch.setattr("polyrhythm.sim.gradients.fastest", plain_gradients)
    assert_same(stacked, trained(policy))


def plain_gradients(task: Task, model: Any, threads: int) -> Any:
    from polyrhythm.training.gradient import PlainGradients

    assert threads == 1
    return PlainGradients(task, model)


@pytest.mark.parametrize("policy", ["bsp", "asp", "local:4"])
def test_the_same_seed_gives_the_same_parameters_and_another_does_not(policy: str) -> None:
    task = toy(tanh)
    assert torch.equal(trained(policy, task=task), trained(policy, task=task))
    assert not torch.equal(trained(policy, task=task, data_seed=1), trained(policy, task=task))
