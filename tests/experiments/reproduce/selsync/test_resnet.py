"""Table 1 of SelSync to convergence with a ResNet-20: in its quick form, and what it trains in full."""

import dataclasses

from polyrhythm_experiments.reproduce import Lab, claims
from polyrhythm_experiments.reproduce.selsync.resnet import (
    CHANGES,
    LOCAL,
    SETTINGS,
    WITH_ADAM,
    WITH_SGD,
    resnet_section,
    resnet_trials,
)
from polyrhythm_experiments.reproduce.selsync.settings import METHODS, place


def test_selsync_stands_beside_bsp_and_the_paper(quick: Lab) -> None:
    section = resnet_section(quick)
    found = {row.what: row for row in claims(section)}
    assert found["LSSR, ResNet-20, SGD, delta 0.3"].paper == "0.829 ResNet101"
    assert found["LSSR, ResNet-20, Adam, delta 0.3"].paper == "0.954 AlexNet"
    assert found["accuracy, FedAvg (1, 0.25), less BSP's, ResNet-20, Adam"].paper == "-8.0 pt AlexNet"
    assert found["sooner at convergence, ResNet-20, SGD, delta 0.5"].why.startswith("A step of BSP takes")
    assert all(any(map(str.isdigit, row.why)) for row in found.values() if row.why)
    settings, with_sgd, with_adam = section.grids[1:]
    assert [row[0] for row in with_sgd.rows] == [*METHODS, *CHANGES, LOCAL]
    assert [row[0] for row in with_adam.rows] == list(METHODS)
    assert all(len(grid.headings) == len(row) for grid in (settings, with_sgd, with_adam) for row in grid.rows)


def test_each_method_trains_the_network_on_smaller_images_until_it_stands_still(quick: Lab) -> None:
    found = resnet_trials(dataclasses.replace(quick, quick=False))
    assert set(found) == {place(title, name) for title in SETTINGS for name in METHODS} | {
        place(WITH_SGD, name) for name in (*CHANGES, LOCAL)
    }
    assert {trial.until for trial in found.values()} == {"accuracy"}
    configs = [trial.scenario.training for trial in found.values()]
    assert {(config.task, config.model, config.schedule) for config in configs if config} == {
        ("cifar10-16", "resnet20", "constant")
    }
    adam = found[place(WITH_ADAM, "BSP")].scenario.training
    assert adam is not None
    assert (adam.optimizer, adam.momentum) == ("Adam", 0.0)
    assert found[place(WITH_SGD, "SelSync delta = 0.3")].policy == "selsync:0.3,factor=0.16"
