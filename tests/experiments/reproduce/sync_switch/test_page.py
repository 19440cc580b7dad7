"""The page on Sync-Switch in its quick form, and the live measurement on two real workers."""

import dataclasses
from pathlib import Path

import pytest

from polyrhythm.report.document import Document
from polyrhythm.sim import Scenario
from polyrhythm.telemetry.result import EvalPoint
from polyrhythm_experiments.reproduce import ClaimRow, Lab, Trial, claims
from polyrhythm_experiments.reproduce.lab import Results
from polyrhythm_experiments.reproduce.markdown import markdown, pictures
from polyrhythm_experiments.reproduce.store import ResultStore
from polyrhythm_experiments.reproduce.sync_switch import page as module
from polyrhythm_experiments.reproduce.sync_switch.accuracy import converged
from polyrhythm_experiments.reproduce.sync_switch.knee import ABLATIONS
from polyrhythm_experiments.reproduce.sync_switch.live import LiveSwitch, measure
from polyrhythm_experiments.reproduce.sync_switch.stragglers import straggler_trials
from polyrhythm_experiments.reproduce.sync_switch.times import faster
from polyrhythm_experiments.reproduce.sync_switch.trials import SETUPS, scenario_of, timed, trials


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(ResultStore(Path(tmp_path_factory.mktemp("runs"))), quick=True)


@pytest.fixture(scope="module")
def page(lab: Lab) -> Document:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "measure", lambda workers: LiveSwitch(workers, 0.1, 10.0, 5.0))
        patch.setattr(module, "LIVE_WORKERS", (8,))
        return module.page(lab)


@pytest.fixture(scope="module")
def runs(lab: Lab, page: Document) -> Results:
    del page  # its runs are remembered
    return lab.run(module.all_trials(lab))


def rows(page: Document) -> list[ClaimRow]:
    return [row for part in page.parts for row in claims(part)]


def test_the_page_has_every_part(page: Document) -> None:
    text = markdown("sync-switch", page)
    assert all(f"]({picture})" in text for picture in pictures("sync-switch", page))
    titles = " ".join(part.title for part in page.parts)
    figures = ("figure 2", "Table I", "figure 4", "figure 5", "figure 8", "figure 14", "figure 15", "Table III")
    assert all(part in titles for part in (*figures, "ResNet-20"))
    assert all(f"figures 10 and {10 + number}" in titles for number in SETUPS)
    for part in page.parts:
        for grid in part.grids:
            assert {len(row) for row in grid.rows} == {len(grid.headings)}
        assert all(row.what and (row.place or not row.paper) for row in claims(part))


def test_every_reason_cites_a_number_of_the_page(page: Document) -> None:
    reasons = [row.why for row in rows(page) if row.why]
    assert reasons
    assert all(any(character.isdigit() for character in why) for why in reasons)


def test_the_knee_is_looked_for_in_decays_momentum_and_rate(page: Document) -> None:
    (grid,) = (grid for part in page.parts for grid in part.grids if grid.title == "One change at a time")
    assert [row[0] for row in grid.rows] == ["as in the paper", *(change.what for change in ABLATIONS)]
    assert all(any(word in change.what for change in ABLATIONS) for word in ("decays", "momentum", "rate"))


def test_times_are_right_in_a_quick_run_too(runs: Results) -> None:
    for number in SETUPS:
        asp, half, bsp = (runs[f"{number}/{name}"][0].duration_s for name in ("ASP", "0.5", "BSP"))
        assert asp < half < bsp
        assert bsp > 1.2 * asp


@pytest.mark.parametrize(("number", "ratio"), [(1, 6.59), (2, 1.87), (3, 14.04)])
def test_the_cluster_is_as_fast_as_the_logs_say(lab: Lab, number: int, ratio: float) -> None:
    scenario = timed(scenario_of(dataclasses.replace(lab, quick=False), SETUPS[number]))
    found = lab.run({name: Trial(scenario, name) for name in ("bsp", "asp")})
    assert faster(found["asp"], found["bsp"]).value == pytest.approx(ratio, rel=0.01)


def test_probes_cost_what_elastic_gains(lab: Lab) -> None:
    """Figure 15: stragglers cost what they cost in the logs, and the server's work on probes eats up the gain."""
    full = dataclasses.replace(lab, quick=False)
    wanted = ("moderate/without stragglers", "moderate/elastic, back when the share is served")
    there = straggler_trials(full) | trials(full)
    named = {name: there[name] for name in (*wanted, "moderate/agnostic", "moderate/elastic")}
    found = lab.run({name: Trial(_bare(each), each.policy) for name, each in named.items()})
    bound, served, agnostic, elastic = found.values()
    assert faster(bound, agnostic).value == pytest.approx(1.074, rel=0.02)
    assert 1 < (faster(elastic, agnostic).value or 0) < (faster(served, agnostic).value or 0)


def _bare(trial: Trial) -> Scenario:
    return timed(trial.scenario) if trial.scenario.training else trial.scenario


def test_a_run_has_converged_when_five_evaluations_are_within_a_tenth_of_a_point() -> None:
    def curve(*accuracies: float) -> list[EvalPoint]:
        return [EvalPoint(float(k), k, k, accuracy, 1.0) for k, accuracy in enumerate(accuracies)]

    assert converged(curve(0.5, 0.8, 0.8004, 0.8, 0.8009, 0.8002, 0.9)) == 0.8002
    assert converged(curve(0.5, 0.8, 0.8, 0.8, 0.8)) is None
    assert converged(curve(0.8, 0.8, 0.802, 0.8, 0.8)) is None


def test_a_switch_of_real_workers_is_measured() -> None:
    measured = measure(2, epochs=1)
    assert measured.workers == 2
    assert 0 < measured.switch_s < measured.duration_s
    assert measured.start_s > 0
    assert measured.load > 0
