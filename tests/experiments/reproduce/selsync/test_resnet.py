"""Table 1 of SelSync to convergence with a ResNet-20: in its quick form, and what it trains in full."""

import dataclasses

from polyrhythm_experiments.reproduce import Lab, claims
from polyrhythm_experiments.reproduce.selsync.resnet import CHANGES, LOCAL, NAMES, place, resnet_section, resnet_trials


def test_selsync_stands_beside_bsp_and_the_paper(quick: Lab) -> None:
    section = resnet_section(quick)
    found = {row.what: row for row in claims(section)}
    assert found["LSSR, ResNet-20, delta 0.3"].paper == "0.829 ResNet101"
    assert found["sooner at convergence, ResNet-20, delta 0.5"].why.startswith("A step of BSP takes")
    assert all(any(map(str.isdigit, row.why)) for row in found.values() if row.why)
    setting, table = section.grids[1:]
    assert [row[0] for row in table.rows] == [*NAMES, *CHANGES, LOCAL]
    assert [len(grid.headings) for grid in (setting, table)] == [len(grid.rows[0]) for grid in (setting, table)]


def test_each_method_trains_the_network_on_smaller_images_until_it_stands_still(quick: Lab) -> None:
    found = resnet_trials(dataclasses.replace(quick, quick=False))
    assert set(found) == {place(name) for name in (*NAMES, *CHANGES, LOCAL)}
    assert {trial.until for trial in found.values()} == {"accuracy"}
    configs = [trial.scenario.training for trial in found.values()]
    assert {(config.task, config.model, config.schedule) for config in configs if config} == {
        ("cifar10-16", "resnet20", "constant")
    }
    assert found[place("SelSync delta = 0.3")].policy == "selsync:0.3,factor=0.16"
