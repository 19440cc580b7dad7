"""The page on RLP in its quick form, and what its figures are made of."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from polyrhythm.report.document import Document
from polyrhythm.rl.instances import FAMILIES
from polyrhythm_experiments.reproduce import ClaimRow, Lab, claims
from polyrhythm_experiments.reproduce.markdown import markdown, pictures
from polyrhythm_experiments.reproduce.rlp import page as module
from polyrhythm_experiments.reproduce.rlp.causes import HIGHER, causes, why
from polyrhythm_experiments.reproduce.rlp.evaluation import PAPER_DQN, instances, paper_learned, policy_for
from polyrhythm_experiments.reproduce.rlp.families import ABLATED, FIGURES, OWN, OWN_FIGURES, SETTING, family_of
from polyrhythm_experiments.reproduce.rlp.results import most_room, shown
from polyrhythm_experiments.reproduce.rlp.trials import LEARNED, SPECS, figures, made_from


@pytest.fixture(scope="module")
def page(quick: Lab) -> Document:
    return module.page(quick)


def rows(page: Document) -> list[ClaimRow]:
    return [row for part in page.parts for row in claims(part)]


def run(gradients: int, time_s: float, reached: bool = True) -> Any:
    return SimpleNamespace(gradients_applied=gradients, duration_s=time_s, time_to_target_s=time_s if reached else None)


def results(*families: str) -> Any:
    """BSP needs half of ASP's gradients and twice its time; everyone else does as ASP."""
    return {family: {**{spec: [run(200, 100.0)] for spec in SPECS}, "bsp": [run(100, 200.0)]} for family in families}


def test_the_page_has_every_part(page: Document) -> None:
    text = markdown("rlp", page)
    assert all(f"]({picture})" in text for picture in pictures("rlp", page))
    assert all(len(row) == len(grid.headings) for part in page.parts for grid in part.grids for row in grid.rows)
    assert all(row.what and row.place for row in rows(page))
    keys = [chart.key for part in page.parts for chart in part.charts]
    assert len(keys) == len(set(keys))


def test_the_paper_s_own_system_stands_beside_ours_in_every_figure(page: Document) -> None:
    names = [shown(spec) for spec in LEARNED]
    assert all(any(f"by that of {name}," in row.what for row in rows(page)) for name in names)
    for part in page.parts:
        for grid in part.grids:
            if grid.title == "Mean time to the target":
                assert list(grid.headings[-2:]) == names


def test_every_reason_has_a_figure(page: Document) -> None:
    assert all(any(map(str.isdigit, row.why)) for row in rows(page) if row.why)


def test_each_figure_has_the_paper_s_setting_and_a_higher_rate(quick: Lab) -> None:
    whole = figures(Lab(quick.store))
    assert {name for names in whole.values() for name in names} >= {*OWN}
    assert all(whole[title] == OWN_FIGURES[title] + FIGURES[title] for title in whole)
    for family in OWN.values():
        assert (family.learning_rate, family.width) == (0.01, 256)
    assert [OWN[f"cifar10-combined-{n}"].workers for n in (2, 5, 8)] == [(2,), (5,), (8,)]


def test_an_ablation_changes_one_thing() -> None:
    base, *others = ABLATED.values()
    for family in others:
        changed = {name for name in base.__slots__ if getattr(base, name) != getattr(family, name)} - {"name"}
        assert len(changed) == 1


def test_names_of_families_are_found_and_distinct() -> None:
    assert family_of(HIGHER).learning_rate == 0.06
    assert family_of("hidden-0") is FAMILIES["hidden-0"]
    assert not set(ABLATED) & set(OWN)


def test_room_is_what_the_fewest_gradients_would_gain_without_waiting() -> None:
    assert most_room(results("hidden-0"), "hidden-0") == ("bsp", 2.0)
    stuck = results("hidden-0")
    stuck["hidden-0"]["bsp"] = [run(10, 1500.0, reached=False)]
    assert most_room(stuck, "hidden-0")[1] == 1.0


def test_a_reason_cites_the_run_at_a_higher_rate() -> None:
    both = results(SETTING, HIGHER)
    assert "At rate 0.06, with one hidden layer, the room is 2.00x and this 1.00x." in why(both, SETTING, "rlp")
    assert "RLP leaves ASP in 0 of 1 jobs." in why(results("hidden-0"), "hidden-0", "rlp")
    assert "on validation jobs" in why(both, SETTING, PAPER_DQN)
    (section,) = causes(both)
    assert section.grids[0].rows[0][:4] == [HIGHER, "100", "200", "2.00x (BSP's)"]


def test_the_paper_s_dqn_acts_outside_of_its_training() -> None:
    policy: Any = policy_for(PAPER_DQN, 2)
    assert policy.learned.conditions.hold(2, [1e9] * 40)
    observation = tuple(np.linspace(0, 1, 40).tolist())
    assert policy.choose(observation) == paper_learned().network.best(observation)


def test_a_result_of_the_paper_s_dqn_depends_on_its_file() -> None:
    (job,) = instances("hidden-0", 1)
    assert [len(made_from(job, spec)) for spec in ("asp", "rlp", PAPER_DQN)] == [2, 3, 3]
