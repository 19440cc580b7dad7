"""Figures 3 to 5 and 11 of SelSync: what is looked at, and the part of the page in its quick form."""

import dataclasses

import pytest

from polyrhythm_experiments.reproduce import Lab, claims
from polyrhythm_experiments.reproduce.selsync.inside import (
    CAPTIONS,
    EVALUATIONS,
    densities,
    inside_section,
    insides,
    of_largest,
    scenario_of,
)


def test_each_figure_has_a_claim_and_a_chart_of_both_models(quick: Lab) -> None:
    section = inside_section(quick)
    places = [row.place.rpartition(", ")[2] for row in claims(section)]
    assert places == 2 * ["fig. 3", "fig. 4", "fig. 5", "fig. 5", "fig. 11"]
    keys = [chart.key for chart in section.charts]
    assert keys == [f"inside-{key}-{model.lower()}" for model in EVALUATIONS for key in CAPTIONS]
    assert all(len(trace.x) == len(trace.y) > 1 for chart in section.charts for trace in chart.figure.data)


def test_what_is_remembered_is_what_was_seen(quick: Lab) -> None:
    assert insides(quick, "MLP") == insides(quick, "MLP")


@pytest.mark.parametrize(("model", "task", "workers"), [("MLP", "fashion-mnist", 16), ("ResNet-20", "cifar10-16", 4)])
def test_both_models_train_with_a_rate_that_decays(quick: Lab, model: str, task: str, workers: int) -> None:
    scenario = scenario_of(dataclasses.replace(quick, quick=False), model)
    assert scenario.training is not None
    assert (scenario.training.task, scenario.workers, scenario.training.schedule) == (task, workers, "step")


def test_shares_of_the_largest() -> None:
    assert of_largest([1.0, 4.0, -2.0]) == [0.25, 1.0, -0.5]
    assert of_largest([0.0, -1.0]) == [0.0, -1.0]


def test_densities_of_equal_values_are_flat() -> None:
    import torch

    (flat,) = densities({"zeros": torch.zeros(9)})
    assert set(flat.y) == {0.0}
