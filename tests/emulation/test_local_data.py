"""Runs on real workers of one host with shards, injection and compression, as small as they can be."""

from typing import Any

import msgspec
import pytest

from polyrhythm.emulation.local import LocalRun, check_run, run_local
from polyrhythm.emulation.pace import Emulation
from polyrhythm.errors import ScenarioError
from polyrhythm.policies import parse_policy
from polyrhythm.telemetry import RunResult
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.tasks import build_task

TRAINING = TrainingConfig(train_samples=64, test_samples=50, batch_size=8, epochs=2, learning_rate=0.05)
QUICK = Emulation([0.001])


def local(policy: str, **changes: Any) -> LocalRun:
    return LocalRun("tiny", parse_policy(policy), msgspec.structs.replace(TRAINING, **changes), 0, (QUICK, QUICK))


def result_of(run: LocalRun) -> RunResult:
    return run_local(run, build_task(run.training))


def test_injected_samples_and_their_bytes_are_in_the_result() -> None:
    result = result_of(local("local:2", injection=(0.5, 0.5), partition="labels:5"))
    assert (result.status, result.samples, result.batch_size) == ("ok", 128, 5)
    assert result.injected_samples == sum(sum(row.values()) for row in result.injected_by_source.values()) > 0
    assert result.injected_bytes == result.injected_samples * (64 * 4 + 8)


def test_bytes_are_those_of_the_payloads() -> None:
    plain, compressed = result_of(local("asp")), result_of(local("asp", compression="topk:0.1"))
    assert compressed.samples == plain.samples == 128
    assert compressed.bytes_pushed == pytest.approx(0.2 * plain.bytes_pushed, rel=1e-3)


def test_workers_that_run_apart_cannot_inject() -> None:
    with pytest.raises(ScenarioError, match=r"training\.injection needs workers that make their steps together.* asp"):
        check_run(local("asp", injection=(0.5, 0.5)))
