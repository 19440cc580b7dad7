"""The pages of the papers in their quick form: whole, and right where a quick run can be right."""

from collections.abc import Iterator

import msgspec
import pytest

from polyrhythm.report.document import Document
from polyrhythm_experiments.reproduce import ClaimRow, Lab, claims
from polyrhythm_experiments.reproduce.esync.page import page as esync_page
from polyrhythm_experiments.reproduce.markdown import markdown, pictures
from polyrhythm_experiments.reproduce.selsync.page import page as selsync_page
from polyrhythm_experiments.reproduce.selsync.table import table_cells
from polyrhythm_experiments.reproduce.selsync.trials import cluster, trial


@pytest.fixture(scope="module")
def esync(quick: Lab) -> Document:
    return esync_page(quick)


@pytest.fixture(scope="module")
def selsync(quick: Lab) -> Document:
    return selsync_page(quick)


def rows(page: Document) -> Iterator[ClaimRow]:
    for part in page.parts:
        yield from claims(part)


def value(page: Document, what: str) -> float:
    (row,) = (row for row in rows(page) if row.what == what)
    assert not isinstance(row.ours, str)
    assert row.ours.value is not None
    return row.ours.value


@pytest.mark.parametrize("name", ["esync", "selsync"])
def test_a_page_has_every_part(name: str, request: pytest.FixtureRequest) -> None:
    page: Document = request.getfixturevalue(name)
    text = markdown(name, page)
    assert all(f"]({picture})" in text for picture in pictures(name, page))
    assert all(len(row) == len(grid.headings) for part in page.parts for grid in part.grids for row in grid.rows)
    assert all(row.what and (row.place or not row.paper) for row in rows(page))


def test_esync_makes_as_many_steps_as_fit(esync: Document) -> None:
    """Times alone, which a quick run has in full."""
    assert value(esync, "samples/s, ESync over SSGD") > 30
    assert value(esync, "samples/s, ESync over ASGD") > 3
    assert value(esync, "bytes/s, ASGD over ESync") > 10
    (computing,) = (chart.figure.data for part in esync.parts for chart in part.charts if chart.key == "computing")
    by_policy = list(zip(computing[0].x, *(bars.y for bars in computing), strict=True))
    assert all(min(shares) > 0.8 for name, *shares in by_policy if name == "ESync")
    assert all(min(shares) < 0.2 for name, *shares in by_policy if name == "SSGD")


def test_esync_is_raced_on_data_that_differ_too(esync: Document) -> None:
    names = [f"time to 80 %, {name} over ESync, Dirichlet(0.3), rate 0.05" for name in ("SSGD", "ASGD", "SSP(3)")]
    assert {row.what for row in rows(esync)} >= {*names}
    (table,) = (grid for part in esync.parts for grid in part.grids if grid.title == "Time to 80 % at rate 0.05")
    assert [row[0] for row in table.rows] == ["i.i.d.", "Dirichlet(0.3)", "2 shards a device", "sorted"]


def test_esync_has_six_networks_in_both_modes(esync: Document) -> None:
    names = ["AlexNet", "Inception-v3", "ResNet-18-v1", "ResNet-50-v1", "ResNet-50-v2", "MobileNet-v1"]
    for mode in ("blocking", "non-blocking"):
        found = [row for row in rows(esync) if row.what.startswith(f"time to 80.0 %, SSGD over ESync, {mode}, ")]
        assert [row.what.rsplit(", ", 1)[1] for row in found] == names
        assert [row.paper for row in found] == ["27x", "7x", "7x", "4x", "6x", "2x"]
        assert all(value(esync, row.what) > 2 for row in found)


def test_esync_has_six_networks_at_their_convergence(esync: Document) -> None:
    found = {row.what: row.paper for row in rows(esync) if ", less standalone, " in row.what}
    papers = ["+0.1 pt", "+0.5 pt", "+0.0 pt", "+0.4 pt", "-0.2 pt", "+0.1 pt"]
    for mode in ("blocking", "non-blocking"):
        networks = {what: paper for what, paper in found.items() if what.startswith(f"accuracy, ESync, {mode}, ")}
        assert [*networks.values()][1:] == papers
    (table,) = (grid for part in esync.parts for grid in part.grids if grid.title == "By network")
    assert [row[1] for row in table.rows][:2] == ["92.9 %, 92.8 %", "93.7 %, 93.2 %"]


def test_esync_is_compared_at_its_convergence(esync: Document) -> None:
    what = {row.what for row in rows(esync)}
    assert "accuracy, ESync, blocking, less standalone, each at its convergence" in what
    assert {"time to convergence, ESync, blocking", "time to convergence, standalone"} <= what


def test_selsync_exchanges_less_than_bsp(selsync: Document) -> None:
    assert 0.5 < value(selsync, "LSSR, delta 0.3") <= value(selsync, "LSSR, delta 0.5") < 1


def test_selsync_is_run_to_convergence_and_by_perplexity(selsync: Document) -> None:
    found = {row.what for row in rows(selsync)}
    assert {"accuracy less BSP's, CNN, SGD, delta 0.3", "sooner at convergence, MLP, Adam, delta 0.5"} <= found
    assert {"LSSR, ResNet-20, SGD, delta 0.3", "accuracy less BSP's, ResNet-20, Adam, delta 0.5"} <= found
    assert {
        "accuracy less BSP's, CNN, Adam, delta 0.3",
        "steps to convergence over BSP's, 16 workers, delta = 0.5",
    } <= found
    assert {
        "perplexity less BSP's, 4 workers, delta = 0.3",
        "perplexity, FedAvg (1, 0.25), less BSP's, 4 workers",
    } <= found


def test_no_reason_of_selsync_is_without_a_figure(selsync: Document) -> None:
    assert all(any(map(str.isdigit, row.why)) for row in rows(selsync) if row.why)


def test_runs_that_diverge_are_called_so(quick: Lab) -> None:
    fine = quick.run({"run": trial(quick, "bsp")})["run"]
    gone = [msgspec.structs.replace(run, status="diverged") for run in fine]
    assert table_cells(gone, fine) == ["", "diverged", "", "", "never"]
    assert str(table_cells(fine, fine)[3]) == "1x"


def test_injection_keeps_the_steps_and_momentum_pays_for_its_bytes(quick: Lab) -> None:
    plain, mixed, averaged = (
        cluster(quick, 100, 10, **training)
        for training in ({}, {"injection": (0.5, 0.5)}, {"averaged_state": "average"})
    )
    assert plain.training is not None
    assert mixed.training is not None
    assert (plain.training.samples, mixed.training.samples) == (2 * 10 * 32, 2 * 10 * 9)
    assert averaged.network.message_bytes == 2 * plain.network.message_bytes
