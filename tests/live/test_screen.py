"""The terminal's picture: it fits, and says in text what colours say."""

import re
from io import StringIO

import pytest
from rich.console import Console

from polyrhythm.live.model import view_of
from polyrhythm.live.screen import KEYS, screen
from tests.live.statuses import arrival, event, status, worker

STYLE = re.compile(r"\x1b\[[0-9;]*m")


def drawn(height: int, workers: int, width: int = 80, **more: object) -> list[str]:
    ranks = range(workers)
    late = {"relative": 2.3, "late": True, "kind": "persistent"}
    arrivals = {rank: arrival(1234, 0.015, 0.001, 0.004, **(late if rank == workers - 1 else {})) for rank in ranks}
    now = status(
        75.0,
        900,
        members=tuple(ranks),
        workers=tuple(worker(rank, 50, 74.9, running=True) for rank in ranks),
        arrivals=arrivals,
        loss=0.1234,
        events=(event(1), event(2, "death", "rank 7 [red]died[/red]")),
        **more,
    )
    out = StringIO()
    Console(file=out, width=width, height=height, no_color=True, force_terminal=True).print(
        screen(view_of(now), height)
    )
    return out.getvalue().splitlines()


@pytest.mark.parametrize("workers", [1, 4, 8, 64])
def test_it_fits_a_small_terminal(workers: int) -> None:
    lines = drawn(24, workers)
    assert len(lines) <= 24
    assert max(len(STYLE.sub("", line)) for line in lines) <= 80


def test_no_column_is_cut_but_the_last() -> None:
    arrivals = {0: arrival(123_456, 0.0355, 0.0, 0.118, kind="transient"), 1: arrival(9, 0.0355)}
    now = status(75.0, workers=(worker(0, running=True), worker(1, at_end=True)), arrivals=arrivals)
    out = StringIO()
    Console(file=out, width=80).print(screen(view_of(now)))
    (row,) = [line for line in out.getvalue().splitlines() if "123,456" in line]
    assert "computing" in row
    assert "118 ms" in row
    assert "transient, on tim" in row


def test_it_says_what_matters() -> None:
    text = "\n".join(drawn(24, 8))
    for part in (
        "job fruit",
        "policy asp",
        "epoch 1, 90%",
        "loss 0.123",
        "staleness",
        "persistent, 2.3x",
        "1,234",
        KEYS,
    ):
        assert part in text


def test_of_many_workers_the_late_ones_are_shown() -> None:
    text = "\n".join(drawn(24, 256))
    assert "persistent, 2.3x" in text
    assert "more" in text


def test_names_are_no_markup() -> None:
    assert "rank 7 [red]died[/red]" in "\n".join(drawn(24, 2))


def test_without_colours_nothing_is_coloured() -> None:
    assert not any("\x1b[3" in line for line in drawn(24, 4))


def test_a_job_that_has_ended_says_so() -> None:
    assert "ended: finished" in drawn(24, 2, width=120, ended="finished")[0]
