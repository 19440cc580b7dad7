"""Which loader takes the place of which, also where one line makes several."""

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from polyrhythm.runtime.script.data.loaders import Loaders, TrainingLoaders


def data() -> Dataset[Any]:
    return TensorDataset(torch.zeros(8, 1))


@pytest.fixture
def loaders() -> Loaders:
    return Loaders()


def made(loaders: Loaders, *datasets: Dataset[Any]) -> list[DataLoader[Any]]:
    """A loader of each, all by the same lines."""
    found = [DataLoader(dataset, 2) for dataset in datasets]
    for each in found:
        loaders.made(each)
    return found


def steps_from(loaders: Loaders, training: list[DataLoader[Any]]) -> TrainingLoaders:
    loaders.training = training[0]
    return TrainingLoaders(loaders, training)


def test_two_of_one_line_are_two(loaders: Loaders) -> None:
    first, second = made(loaders, data(), data())
    known = steps_from(loaders, [first, second])
    assert [known.number(each) for each in (second, first, second)] == [1, 0, 1]


def test_one_for_evaluation_takes_no_place(loaders: Loaders) -> None:
    training, other = made(loaders, data(), data())
    known = steps_from(loaders, [training])
    assert (len(known), known.number(training), known.number(other)) == (1, 0, None)


def test_one_that_is_made_anew_takes_the_place_of_the_last(loaders: Loaders) -> None:
    known: TrainingLoaders | None = None
    for _ in range(3):
        (loader,) = made(loaders, data())
        known = known or steps_from(loaders, [loader])
        assert known.number(loader) == 0


def test_several_that_are_made_anew_come_in_turn_or_by_their_data(loaders: Loaders) -> None:
    kept, epochs = data(), list[list[DataLoader[Any]]]()
    known: TrainingLoaders | None = None
    for _ in range(3):
        epochs.append(made(loaders, kept, data()))
        known = known or steps_from(loaders, epochs[0])
        first, second = epochs[-1]
        assert [known.number(each) for each in (second, first, second)] == [1, 0, 1]


def test_one_by_other_lines_takes_no_place(loaders: Loaders) -> None:
    (training,) = made(loaders, data())
    known = steps_from(loaders, [training])
    (other,) = made(loaders, data())
    assert known.number(other) is None
