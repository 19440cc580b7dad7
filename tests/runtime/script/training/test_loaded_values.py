"""Whether what a script loads changes what it trains."""

import torch
from torch import nn

from polyrhythm.runtime.script.training.loaded_values import LoadedValues


def twice(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value * 2 for name, value in model.state_dict().items()}


def test_other_values_for_an_evaluation_and_then_the_own_ones_change_nothing() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1))
    loaded, own = LoadedValues(list(model.parameters())), {k: v.clone() for k, v in model.state_dict().items()}
    for values in (twice(model), own):
        with loaded.load(model):
            model.load_state_dict(values)
    assert not loaded.take()
    with loaded.load(model[0]):
        model[0].load_state_dict(twice(model[0]))
    assert loaded.take()
    assert not loaded.take()


def test_a_copy_may_load_what_it_wants() -> None:
    model, target = nn.Linear(2, 1), nn.Linear(2, 1)
    loaded = LoadedValues(list(model.parameters()))
    with loaded.load(target):
        target.load_state_dict(model.state_dict())
    assert not loaded.take()


def test_what_is_loaded_between_two_epochs_is_seen_as_the_next_one_begins() -> None:
    model = nn.Linear(2, 1)
    loaded, seen = LoadedValues(list(model.parameters())), list[bool]()
    for measured in (False, True, False):
        loaded.end_epoch(measured)
        seen.append(loaded.since_epoch)
        model.load_state_dict(twice(model))
        seen.append(loaded.since_epoch)
    assert seen == [False, False, False, True, False, False]
