"""Curves and text for TensorBoard, read back with its own reader."""

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from polyrhythm.live.model import view_of
from polyrhythm.live.tensorboard import TensorBoardLog
from tests.live.statuses import arrival, event, status, worker


def test_curves_are_over_samples(tmp_path: Path) -> None:
    log = TensorBoardLog(str(tmp_path))
    for samples in (100, 100, 300):
        now = status(
            samples / 100,
            samples,
            loss=1 / samples,
            staleness=(1, 1),
            staleness_sum=1,
            workers=(worker(0),),
            arrivals={0: arrival(3, 0.3, 0.1, 0.1)},
        )
        log.see(now, view_of(now), [event(1), event(2, "join")] if samples == 300 else [])
    log.close()
    found = EventAccumulator(str(tmp_path)).Reload()
    tags = found.Tags()
    assert set(tags["scalars"]) == {"loss", "samples_per_s", "staleness", "wait_share", "stragglers", "workers"}
    assert [(point.step, round(point.value, 4)) for point in found.Scalars("loss")] == [(100, 0.01), (300, 0.0033)]
    assert found.Scalars("wait_share")[0].value == pytest.approx(0.2)
    assert {*tags["tensors"]} == {"switch/text_summary", "join/text_summary"}


def test_a_folder_that_cannot_be_written_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    log = TensorBoardLog("/dev/null/runs")
    now = status()
    log.see(now, view_of(now), [])
    log.close()
    assert capfd.readouterr().err.count("cannot write to --tensorboard /dev/null/runs") == 1
