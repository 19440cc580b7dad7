"""Handwritten digits, 8x8 pixels, embedded in scikit-learn: 1,437 samples to learn from and 360 to test."""

from functools import cache

import torch
from torch import Tensor

from polyrhythm.training.data.task import Split, Task
from polyrhythm.training.models import vision_model


def digits_task(model: str = "mlp") -> Task:
    """The digits of scikit-learn, standardised; the same stratified split every time.

    >>> task = digits_task()
    >>> len(task.train), len(task.test), tuple(task.train.inputs.shape[1:])
    (1437, 360, (1, 8, 8))
    """
    pixels, targets, train, test = read_digits()
    pixels = (pixels - pixels[train].mean()) / pixels[train].std()
    seen, unseen = (Split(pixels[rows], targets[rows]) for rows in (train, test))
    return Task("digits", seen, unseen, build=vision_model(model, channels=1, side=8))


@cache  # else each of many simulated runs reads the text file again
def read_digits() -> tuple[Tensor, Tensor, list[int], list[int]]:
    """Pixels, targets, and which of them are to learn from and to test."""
    from sklearn.datasets import load_digits  # takes a second, which other tasks need not wait for
    from sklearn.model_selection import train_test_split

    data = load_digits()
    pixels = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1)
    targets = torch.tensor(data.target, dtype=torch.int64)
    train, test = train_test_split(range(len(targets)), test_size=0.2, stratify=data.target, random_state=0)
    return pixels, targets, train, test
