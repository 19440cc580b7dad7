"""The page on Sync-Switch in its quick form, and the live measurement on two real workers."""

from pathlib import Path

import pytest

from polyrhythm.report.document import Document
from polyrhythm_experiments.reproduce import Lab, claims
from polyrhythm_experiments.reproduce.markdown import markdown, pictures
from polyrhythm_experiments.reproduce.store import ResultStore
from polyrhythm_experiments.reproduce.sync_switch import page as module
from polyrhythm_experiments.reproduce.sync_switch.live import LiveSwitch, measure
from polyrhythm_experiments.reproduce.sync_switch.trials import SETUPS, trials


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    return Lab(ResultStore(Path(tmp_path_factory.mktemp("runs"))), quick=True)


@pytest.fixture(scope="module")
def page(lab: Lab) -> Document:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "measure", lambda workers: LiveSwitch(workers, 0.1, 10.0, 5.0))
        return module.page(lab)


def test_the_page_has_every_part(page: Document) -> None:
    text = markdown("sync-switch", page)
    assert all(f"]({picture})" in text for picture in pictures("sync-switch", page))
    titles = " ".join(part.title for part in page.parts)
    assert all(part in titles for part in ("figure 2", "Table I", "figure 5", "figure 8", "figure 14", "figure 15"))
    assert all(f"figures 10 and {10 + number}" in titles for number in SETUPS)
    for part in page.parts:
        for grid in part.grids:
            assert {len(row) for row in grid.rows} == {len(grid.headings)}
        assert all(row.what and (row.place or not row.paper) for row in claims(part))


def test_times_are_right_in_a_quick_run_too(lab: Lab, page: Document) -> None:
    runs = lab.run(trials(lab))
    for number in SETUPS:
        asp, half, bsp = (runs[f"{number}/{name}"][0].duration_s for name in ("ASP", "0.5", "BSP"))
        assert asp < half < bsp
        assert bsp > 1.2 * asp
    assert all(runs[f"moderate/{name}"][0].status == "ok" for name in ("agnostic", "greedy", "elastic"))


def test_a_switch_of_real_workers_is_measured() -> None:
    measured = measure(2, epochs=1)
    assert measured.workers == 2
    assert 0 < measured.switch_s < measured.duration_s
    assert measured.start_s > 0
