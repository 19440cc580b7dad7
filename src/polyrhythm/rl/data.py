"""Small image sets for episodes, ready as floats, and the stack of linear layers that is trained on them."""

from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from polyrhythm.errors import DataError, did_you_mean
from polyrhythm.training.data.task import Split, Task
from polyrhythm.training.data.tasks.digits import digits_task
from polyrhythm.training.data.tasks.images import IMAGE_SETS, image_task
from polyrhythm.training.models import seeded

SETS = {"digits": "", "fashion-mnist": "fashion-mnist", "fashion-mnist-28": "fashion-mnist", "cifar10": "cifar10"}
"""Data sets of episodes, and the images that each is made of: digits are embedded, others are read from a folder or
downloaded."""
HALVED = ("fashion-mnist",)
"""Data sets whose images are averaged down by half."""

GIVEN_BY = "--data (in Python, folder)"
"""What names the folder of a data set."""
TRAIN_SAMPLES = 20_000
"""At most so many samples of a set are kept to learn from."""
PROBE_SAMPLES = 400
"""Size of the validation set, whose accuracy says when an episode ends."""
SHALLOW = 3
"""Most hidden layers that learn well from torch's own initialisation."""


@lru_cache(maxsize=4)
def image_data(name: str, folder: str | None = None) -> Task:
    """A data set with standardised floats; its test split is the validation set of episodes.

    Example:
        >>> task = image_data("digits")
        >>> tuple(task.train.inputs.shape), len(task.test)
        ((1437, 1, 8, 8), 360)
    """
    if name not in SETS:
        raise DataError(f"unknown data set {name!r} for episodes: {did_you_mean(name, SETS)}")
    if name == "digits":
        return digits_task()
    if folder is not None:
        folder = str(Path(folder).resolve())
    task = image_task(replace(IMAGE_SETS[SETS[name]], given_by=GIVEN_BY), "mlp", folder)
    train, test = task.train.first(TRAIN_SAMPLES), task.test.first(PROBE_SAMPLES)
    ready = halved if name in HALVED else prepared
    return Task(name, ready(task, train), ready(task, test), task.build)


def prepared(task: Task, split: Split) -> Split:
    return Split(task.prepared(split.inputs), split.targets)


def halved(task: Task, split: Split) -> Split:
    images = functional.avg_pool2d(task.prepared(split.inputs), 2)
    return Split(images.div_(images.std()), split.targets)


def sampled(task: Task, share: float, seed: int, hidden_layers: int, width: int) -> Task:
    """The task on a random share of its training samples, with a stack of linear layers as model."""
    rows = torch.randperm(len(task.train), generator=torch.Generator().manual_seed(seed))
    rows = rows[: max(1, round(share * len(rows)))]
    train = Split(task.train.inputs[rows], task.train.targets[rows])
    inputs = task.train.inputs[0].numel()
    return replace(task, train=train, build=partial(seeded, partial(stack, inputs, hidden_layers, width)))


def stack(inputs: int, hidden_layers: int, width: int, classes: int = 10) -> nn.Sequential:
    """Fully connected layers with ReLU between them; none hidden is logistic regression.

    More than `SHALLOW` hidden layers start from He's initialisation; from torch's own they hardly learn.

    >>> [tuple(p.shape) for p in stack(64, 1, 16).parameters()]
    [(16, 64), (16,), (10, 16), (10,)]
    """
    widths = [inputs, *[width] * hidden_layers]
    layers: list[nn.Module] = [nn.Flatten()]
    for size, following in pairwise(widths):
        layers += [nn.Linear(size, following), nn.ReLU()]
    if hidden_layers > SHALLOW:
        for layer in layers[1::2]:
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")  # type: ignore[arg-type]
    return nn.Sequential(*layers, nn.Linear(widths[-1], classes))
