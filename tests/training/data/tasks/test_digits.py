import pytest
import torch

from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.tasks import build_task
from polyrhythm.training.data.tasks.digits import digits_task


def test_the_split_is_stratified_standardised_and_always_the_same() -> None:
    task, again = digits_task(), digits_task("cnn")
    assert torch.equal(task.train.inputs, again.train.inputs)
    assert abs(task.train.inputs.mean()) < 1e-5
    assert abs(task.train.inputs.std() - 1) < 1e-5
    shares = [torch.bincount(split.targets) / len(split) for split in (task.train, task.test)]
    assert (shares[0] - shares[1]).abs().max() < 0.01


def test_both_models_fit_the_images() -> None:
    for name in ("mlp", "cnn"):
        task = build_task(TrainingConfig(model=name, train_samples=100, test_samples=20))
        assert (len(task.train), len(task.test)) == (100, 20)
        assert task.evaluate(task.build(0)).accuracy <= 1.0


def test_it_is_read_once_and_nobody_sees_what_others_make_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first = digits_task()
    inputs, targets = first.train.inputs.clone(), first.train.targets.clone()
    first.train.inputs.zero_()
    first.train.targets.zero_()
    monkeypatch.setattr("sklearn.datasets.load_digits", lambda: pytest.fail("read again"))
    again = digits_task()
    assert torch.equal(again.train.inputs, inputs)
    assert torch.equal(again.train.targets, targets)
