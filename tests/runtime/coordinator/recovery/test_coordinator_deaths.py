"""Real jobs whose coordinator is killed: they go on, and their parameters say that each sample counts once."""

import os
import signal
import time
import uuid
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.wire.protocol import Address
from tests.chaos import play as chaos
from tests.chaos.scripts import FaultScript
from tests.runtime.coordinates import await_samples, train, trouble
from tests.runtime.jobs import LIMIT_S, job

EPOCHS, SAMPLES, BATCH, COMPUTE_S = 2, 480, 4, 0.003


def run(
    folder: Path, policy: str, workers: int, kills: tuple[int, ...], shard: bool = False, **others: Any
) -> list[Tensor]:
    """A job whose coordinator, or a server of parameters, is killed at these counts of samples; the workers'
    parameters.
    """
    settings, until = {"policy": policy, "epochs": EPOCHS, "max_coordinator_restarts": 9, **others}, folder / "through"
    until.unlink(missing_ok=True)
    with job(train, workers, EPOCHS, SAMPLES, BATCH, COMPUTE_S, str(until), **settings) as running:
        for samples in kills:
            assert await_samples(running, samples), "it has ended before"
            os.kill(running.shard if shard else running.serving, signal.SIGKILL)
        until.touch()
        outcomes = running.join()
    assert all(outcome.ok for outcome in outcomes), [outcome.traceback for outcome in outcomes]
    return [outcome.value for outcome in outcomes]


@pytest.mark.parametrize("policy", ["bsp", "local:8", "selsync:0.05"])
def test_a_job_on_its_workers_goes_on_without_its_coordinator(policy: str, tmp_path: Path) -> None:
    weights = run(tmp_path, policy, 3, (100, 300, SAMPLES + 100))
    assert trouble(weights, [3]) == ""


@pytest.mark.parametrize("policy", ["esync", "esync:blocking=false"])
def test_workers_that_step_by_themselves_know_what_they_have_done(policy: str, tmp_path: Path) -> None:
    """Here a sample's part depends on who meets with whom, so each attempt at it moves a parameter of its own."""
    name, until = f"deaths-{uuid.uuid4().hex}", tmp_path / "through"
    settings: dict[str, Any] = {"name": name, "policy": policy, "max_coordinator_restarts": 9}
    with job(chaos.train, 3, name, str(until), **settings) as running:
        for samples in (200, 700, chaos.SAMPLES + 200):
            assert await_samples(running, samples), "it has ended before"
            os.kill(running.serving, signal.SIGKILL)
        until.touch()
        outcomes = running.join()
    assert chaos.trouble(outcomes, FaultScript(0, policy, 3, ())) == ""


@pytest.mark.parametrize("policy", ["asp", "ssp:3", "k-sync:2"])
def test_the_servers_go_on_from_their_last_snapshot(policy: str, tmp_path: Path) -> None:
    weights = run(tmp_path, policy, 3, (100, 300, SAMPLES + 100), snapshot="0.1s")
    assert trouble(weights, [3]) == ""


@pytest.mark.parametrize("shard", [False, True], ids=["coordinator", "server"])
@pytest.mark.parametrize("policy", ["asp", "bsp"])
def test_several_servers_go_back_to_the_same_moment(policy: str, shard: bool, tmp_path: Path) -> None:
    weights = run(tmp_path, policy, 3, (100, 300, SAMPLES + 100), shard, snapshot="0.1s", shards=2)
    assert trouble(weights, [3]) == ""


@pytest.mark.parametrize("policy", ["esync:blocking=false", "asp"])
def test_a_worker_may_die_together_with_the_coordinator(policy: str) -> None:
    """What it has put into exchanges stays, and others make the rest."""
    name = f"deaths-{uuid.uuid4().hex}"
    settings: dict[str, Any] = {"name": name, "policy": policy, "max_coordinator_restarts": 9, "hang_after": 3.0}
    with job(chaos.train, 4, name, snapshot="0.1s", **settings) as running:
        for samples, rank in ((200, 3), (chaos.SAMPLES + 200, 1)):
            assert await_samples(running, samples), "it has ended before"
            serving = running.serving
            running.ranks.kill(rank, signal.SIGKILL)
            os.kill(serving, signal.SIGKILL)
        outcomes = running.join(leave=(1, 3))
    assert chaos.trouble(outcomes, FaultScript(0, policy, 4, ())) == ""


@pytest.mark.parametrize("shards", [1, 2])
def test_sums_on_servers_go_on(shards: int, tmp_path: Path) -> None:
    weights = run(tmp_path, "local:8", 3, (100, 300, SAMPLES + 100), shards > 1, averaging="server", shards=shards)
    assert trouble(weights, [3]) == ""


def test_under_bsp_every_bit_is_that_of_an_undisturbed_run(tmp_path: Path) -> None:
    disturbed, quiet = run(tmp_path, "bsp", 2, (50, 200, SAMPLES + 50)), run(tmp_path, "bsp", 2, ())
    assert all(torch.equal(one, other) for one, other in zip(disturbed, quiet, strict=True))


@pytest.mark.parametrize("returns", [True, False])
def test_a_folder_for_checkpoints_that_is_out_of_reach_does_not_end_the_job(tmp_path: Path, returns: bool) -> None:
    folder, away, until = (tmp_path / name for name in ("kept", "away", "through"))
    settings: dict[str, Any] = {"policy": "bsp", "epochs": EPOCHS, "max_coordinator_restarts": 9, "every": "0.2s"}
    with job(train, 2, EPOCHS, SAMPLES, BATCH, COMPUTE_S, str(until), checkpoint=str(folder), **settings) as running:
        assert await_samples(running, SAMPLES // 4)
        folder.rename(away)
        folder.touch()
        os.kill(running.serving, signal.SIGKILL)
        assert await_samples(running, SAMPLES // 2)
        if returns:
            folder.unlink()
            away.rename(folder)
            before = {*folder.iterdir()}
            while not {*folder.glob("checkpoint-*")} - before:
                assert await_samples(running, 0), "it has ended, and kept nothing"
        until.touch()
        outcomes = running.join()
    assert trouble([outcome.value for outcome in outcomes], [2]) == ""


@pytest.mark.parametrize("never_joins", [True, False])
def test_who_was_excused_before_the_first_phase_is_not_awaited_again(never_joins: bool) -> None:
    """Of four planned workers one has ended, at first before it joined and then after it; another one ends later."""
    settings: dict[str, Any] = {"policy": "bsp", "epochs": EPOCHS, "max_coordinator_restarts": 9, "workers": 4}
    with job(train, 3, EPOCHS, SAMPLES, BATCH, COMPUTE_S, **settings) as running:
        address = steer.at(running.settings.job)
        await_members(address, 3)
        if never_joins:
            steer.absent(address, 3)
            os.kill(running.serving, signal.SIGKILL)
            await_members(address, 3)
            running.ranks.kill(2, signal.SIGKILL)
        else:
            running.ranks.kill(2, signal.SIGKILL)
            await_members(address, 2)
            os.kill(running.serving, signal.SIGKILL)
            await_members(address, 2)
            steer.absent(address, 3)
        outcomes = running.join(leave=(2,))
    assert trouble([outcome.value for outcome in outcomes], [2, 3]) == ""


def await_members(address: Address, count: int) -> None:
    """Until so many have joined, with their heartbeats: before that a worker does not outlive its coordinator."""
    deadline = time.monotonic() + LIMIT_S
    while len([worker for worker in steer.status(address).workers if worker.heard_s]) != count:
        assert time.monotonic() < deadline, "some have ended"
