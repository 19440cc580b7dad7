"""Workers that torchrun, Slurm or an operator of Kubernetes has started."""

import os
from typing import Any

import pytest

from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.launch import rendezvous
from polyrhythm.runtime.launch.environments import equal_tasks, first_host, is_placed, place_of
from polyrhythm.runtime.launch.rendezvous import COORDINATOR
from polyrhythm.runtime.launch.torchrun import launch
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.setting_values import SESSION


def test_flags_that_start_workers_and_a_job_under_way_come_first() -> None:
    torchrun = {"RANK": "1", "WORLD_SIZE": "2"}
    assert is_placed([], torchrun)
    assert is_placed(["--policy", "asp"], {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"})
    assert not is_placed(["--nnodes", "2"], torchrun)
    assert not is_placed([], torchrun | {COORDINATOR: "{}"})
    assert not is_placed([], {"SLURM_NTASKS": "1"})


def test_an_operator_that_sets_the_least() -> None:
    place = place_of({"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "train-0", "MASTER_PORT": "29500"})
    assert (place["LOCAL_RANK"], place["LOCAL_WORLD_SIZE"]) == ("0", "1")
    assert place["TORCHELASTIC_RUN_ID"] == "train-0-29500"


@pytest.mark.parametrize(
    ("nodes", "host"), [("a", "a"), ("a,b", "a"), ("gpu[07-09]", "gpu07"), ("gpu[3,5],x", "gpu3"), ("n-1,n-2", "n-1")]
)
def test_first_host_of_slurm(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_unequal_nodes_are_refused() -> None:
    assert equal_tasks("4") == equal_tasks("4(x2)") == "4"
    with pytest.raises(PolyrhythmError, match="--ntasks-per-node"):
        equal_tasks("4(x2),3")


def test_a_worker_hands_its_whole_config_to_the_job_that_it_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    became: dict[str, str] = {}
    started: list[JobConfig] = []

    def execve(path: str, command: list[str], environment: dict[str, str]) -> None:
        became.update(environment)
        raise SystemExit(0)

    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "POLYRHYTHM_EPOCHS": "3"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv(COORDINATOR, raising=False)
    monkeypatch.setattr(os, "execve", execve)
    with pytest.raises(SystemExit):
        launch(["--policy", "ssp:3", "--epochs", "4", "--shards", "2", "--on-divergence", "end", __file__])
    assert capsys.readouterr().err == "polyrhythm: epochs 4 of --epochs holds; 3 of POLYRHYTHM_EPOCHS is overruled\n"
    for name, value in became.items():
        monkeypatch.setenv(name, value)

    def start(config: JobConfig, **how: Any) -> None:
        started.append(config)

    monkeypatch.setattr(rendezvous, "start_coordinator", start)
    monkeypatch.setattr(rendezvous, "wait_for_coordinator", lambda coordinator: None)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    found = rendezvous.find_coordinator({"policy": "asp", "compress": "int8"})
    assert (found.rank, found.arguments) == (0, {})
    (config,) = started
    assert (config.policy, config.epochs, config.shards, config.on_divergence) == ("ssp:3", 4, 2, "end")
    assert (config.compress, config.workers, config.patience_s) == ("int8", 2, JobConfig().patience_s)
    assert config.given["compress"] == SESSION
    line = "polyrhythm: policy ssp:3 of --policy holds; asp of the script's session is overruled\n"
    assert capsys.readouterr().err == line


def test_epochs_of_a_loop_that_a_checkpoint_may_add_to_are_for_the_coordinator(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[JobConfig] = []
    monkeypatch.setattr(rendezvous, "start_coordinator", started.append)
    monkeypatch.setattr(rendezvous, "wait_for_coordinator", lambda coordinator: None)
    monkeypatch.delenv(COORDINATOR, raising=False)
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "POLYRHYTHM_CHECKPOINT": "kept"}.items():
        monkeypatch.setenv(name, value)
    said = {"epochs": 8, "loop_from": 2}
    assert rendezvous.find_coordinator(said).arguments == said
    assert "epochs" not in started[0].given
