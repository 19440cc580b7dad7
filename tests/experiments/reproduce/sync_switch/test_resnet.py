"""The section on a ResNet-20 in its quick form, and what it trains in full."""

import dataclasses

import pytest

from polyrhythm.report.document import DocumentSection
from polyrhythm_experiments.reproduce import Lab, claims
from polyrhythm_experiments.reproduce.sync_switch.resnet import (
    COMPARED,
    RATE,
    SEEDS,
    SHARES,
    resnet_scenario,
    resnet_section,
    resnet_trials,
)
from polyrhythm_experiments.reproduce.sync_switch.trials import SAMPLES


@pytest.fixture(scope="module")
def section(quick: Lab) -> DocumentSection:
    return resnet_section(quick)


def test_every_switch_point_stands_beside_bsp_and_asp(section: DocumentSection) -> None:
    table, policies = section.grids[1:]
    switches = [*(f"{100 * share:g} %" for share in SHARES), "6.25 %, half the rate"]
    assert [row[0] for row in table.rows] == switches
    assert [row[0] for row in policies.rows] == ["BSP", "ASP", *switches]
    assert [len(row) for grid in section.grids for row in grid.rows if len(row) != len(grid.headings)] == []
    (chart,) = section.charts
    assert len(chart.figure.data) == len(COMPARED)
    whys = [row.why for row in claims(section) if row.why]
    assert all(why.startswith("Not known.") and "6.25 %" in why for why in whys)


def test_it_trains_the_network_of_the_paper_on_smaller_images(quick: Lab) -> None:
    training = resnet_scenario(dataclasses.replace(quick, quick=False, data="folder")).training
    assert training is not None
    assert (training.task, training.model, training.learning_rate) == ("cifar10-16", "resnet20", RATE)
    assert (training.samples, training.train_samples, training.test_samples) == (SAMPLES, None, None)
    assert (training.momentum, training.decay_at, training.data) == (0.9, (0.5, 0.75), "folder")


def test_no_more_seeds_are_run_than_said(quick: Lab) -> None:
    lab = dataclasses.replace(quick, seeds=range(5)).with_seeds(SEEDS)
    assert list(lab.seeds) == list(range(SEEDS))
    assert resnet_trials(lab)["resnet/times/ASP"].scenario.training is None
