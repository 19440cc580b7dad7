"""A paper of two policies on a tiny cluster, which takes well under a second."""

from collections.abc import Callable
from pathlib import Path

import pytest

from polyrhythm.report.document import Document, Grid
from polyrhythm.sim import Device, Scenario, TimingWorkload
from polyrhythm_experiments.reproduce import ClaimRow, Lab, Series, Trial, drawing, findings, ratio, reproduction
from polyrhythm_experiments.reproduce.store import ResultStore

SCENARIO = Scenario(
    devices=[Device(count=2, compute_s=1.0), Device(compute_s=4.0)], workload=TimingWorkload(samples=960)
)


def trials() -> dict[str, Trial]:
    return {policy: Trial(SCENARIO, policy) for policy in ("bsp", "asp")}


def page(lab: Lab) -> Document:
    """What `PAPERS` points to in the tests."""
    runs = lab.run(trials())
    speeds = {policy: [run.samples_per_s for run in results] for policy, results in runs.items()}
    row = ClaimRow("samples/s over BSP", "table 1", "2x", ratio(speeds["asp"], speeds["bsp"]), "a | b")
    lines = drawing("lines", "Lines", "Two points.", ("x", "y"), [Series("a", (1, 10), (0.1, 0.2))], log_x=True)
    bars = drawing("bars", "Bars", "Two bars.", ("", "y"), [Series("a", ("u", "v"), (0.1, 0.2))], kind="bars")
    part = findings("Speed", "Words.", [row], [Grid("T", ("k", "v"), [("a", "1")])], [lines, bars])
    return reproduction("Tiny", "Nobody, 2020.", {"cluster": "3 workers"}, [part], ["all else"])


@pytest.fixture
def lab(tmp_path: Path) -> Callable[..., Lab]:
    """A lab that works in one folder, however often it is opened."""
    return lambda **settings: Lab(ResultStore(tmp_path / "runs"), **settings)


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """A lab for tiny versions, which keeps the runs of a file's tests."""
    return Lab(ResultStore(tmp_path_factory.mktemp("runs")), quick=True)
