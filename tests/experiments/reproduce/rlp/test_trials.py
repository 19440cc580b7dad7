"""Held-out jobs, one after another."""

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from polyrhythm.rl.episode import Episode
from polyrhythm_experiments.reproduce import Lab
from polyrhythm_experiments.reproduce.rlp import evaluation, trials
from polyrhythm_experiments.reproduce.rlp.evaluation import instances


@pytest.fixture
def _collected_by_hand() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_collected_by_hand")
def test_what_an_episode_holds_is_freed_beside_thousands_of_results(
    quick: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[weakref.ref[Episode]] = []

    class Noted(Episode):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(weakref.ref(self))

    monkeypatch.setattr(evaluation, "Episode", Noted)
    monkeypatch.setattr(trials, "COLLECTED_EVERY", 2)
    results = trials.measured(quick, [(each, "asp") for each in instances("hidden-0", 2, seed=7)])
    assert len(results) == len(made) == 2
    assert all(episode() is None for episode in made)
