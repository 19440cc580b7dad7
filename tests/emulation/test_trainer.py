from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import torch

from polyrhythm.emulation.pace import Emulation
from polyrhythm.emulation.trainer import Trainer, TrainerPlan, keep
from polyrhythm.errors import DivergedError
from polyrhythm.runtime.worker.session import Session
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.tasks import build_task

TRAINING = TrainingConfig(train_samples=40, batch_size=8, learning_rate=0.01, momentum=0.5)
TASK = build_task(TRAINING)
QUICK = Emulation([0.0])


class Job:
    """What a step asks of its session."""

    def __init__(self, samples: int) -> None:
        self.rank, self.samples = 0, samples


def trainer(**changes: Any) -> Trainer:
    config = msgspec.structs.replace(TRAINING, **changes)
    return Trainer(TrainerPlan(config, 0, 2, [QUICK, QUICK, QUICK]), 0, TASK)


def rate_after(one: Trainer, samples: int) -> float:
    """The rate of a step that is made when the job stands at so many samples."""
    one.step(cast(Session, Job(samples)), *one.samples(torch.arange(8)))
    return float(one.optimizer.param_groups[0]["lr"])


def test_the_script_states_the_rate_of_an_update_from_all_workers() -> None:
    assert rate_after(trainer(), 0) == pytest.approx(0.03)
    assert rate_after(trainer(lr_convention="same"), 0) == pytest.approx(0.01)


def test_a_schedule_counts_samples_of_the_whole_job() -> None:
    one = trainer(schedule="step", decay_at=(0.5,))
    assert [rate_after(one, samples) for samples in (0, 39, 40)] == pytest.approx([0.03, 0.03, 0.003])


def test_hyper_parameters_are_those_of_the_configuration() -> None:
    one = trainer(optimizer="Adam", momentum=0.0, optimizer_options={"betas": [0.8, 0.9]})
    assert type(one.optimizer).__name__ == "Adam"
    assert one.optimizer.param_groups[0]["betas"] == (0.8, 0.9)
    assert trainer().optimizer.param_groups[0]["momentum"] == 0.5


def test_a_loss_that_is_not_finite_ends_the_worker() -> None:
    one = trainer()
    with torch.no_grad():
        for parameter in one.model.parameters():
            parameter.fill_(float("nan"))
    with pytest.raises(DivergedError, match=r"the loss of worker 0 is nan after 24 samples; lower training\.learn"):
        rate_after(one, 24)


def test_samples_that_travel_are_what_their_indices_name() -> None:
    plain, injected = trainer(), trainer(injection=(0.5, 0.5))
    order = torch.tensor([3, 1, 2])
    (indices,), travelling = plain.dataset(order)[:], injected.dataset(order)[:]
    for expected, found in zip(plain.samples(indices), injected.samples(*travelling), strict=True):
        assert torch.equal(expected, found)


def test_the_first_snapshot_of_an_epoch_stays(tmp_path: Path) -> None:
    path, model = tmp_path / "epoch-0.pt", torch.nn.Linear(2, 1)
    keep(model, path)
    kept = torch.load(path, weights_only=True)
    with torch.no_grad():
        model.weight.add_(1.0)
    keep(model, path)
    assert torch.equal(torch.load(path, weights_only=True)["weight"], kept["weight"])
    assert list(tmp_path.iterdir()) == [path]
