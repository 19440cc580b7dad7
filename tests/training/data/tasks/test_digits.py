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
