"""What a job on Ray is made of, and what is refused before anything is placed; tests/integrations runs one."""

import signal
import socket
import sys
from pathlib import Path
from unittest.mock import Mock

import pytest

from polyrhythm.early_end import early_end
from polyrhythm.errors import EndedError, PolyrhythmError, UnreachableError, UsageError
from polyrhythm.runtime.launch import ray as placement
from polyrhythm.runtime.launch.preemption import LEFT
from polyrhythm.runtime.launch.ray import PAIRS, RayOrder, connected, launch_anywhere, read_order, reserve_pair, run_on
from polyrhythm.runtime.launch.torchrun import read_command


def ordered(*words: str) -> RayOrder:
    made = read_order(words)
    assert made is not None
    return made


def test_each_host_is_started_as_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRHYTHM_TOKEN", "secret")
    words = ["--on", "ray", "--nnodes=2", "--nproc-per-node=3", "--worker-gpus", "0.5", "--policy=asp", "train.py"]
    made = ordered(*words, "--on", "here")
    assert (made.hosts, made.resources) == (2, {"CPU": 3.0, "GPU": 1.5})
    plan = read_command(made.arguments(1, "127.0.0.1:7000"))
    assert (plan.config.workers, plan.ranks, plan.config.job) == (6, range(3, 6), made.job)
    assert plan.command[-3:] == ("train.py", "--on", "here")
    assert plan.node.port == 7000


def test_one_host_needs_no_meeting_point() -> None:
    made = ordered("--on", "ray", "--job", "fruit", "--nproc-per-node", "2", "train.py")
    assert made.arguments(0, "nowhere:1") == ["--nproc-per-node", "2", "--job", "fruit", "train.py"]


@pytest.mark.parametrize(("codes", "status"), [([0, LEFT], 0), ([LEFT, LEFT], LEFT), ([1, 0], 1), ([0, -9], 1)])
def test_a_host_that_leaves_does_not_fail_the_job(codes: list[int], status: int) -> None:
    ray = Mock()
    ray.get.side_effect = [("10.0.0.1", 7000), codes]
    assert run_on(ray, None, RayOrder([], ["train.py"], 2, {"CPU": 1.0}, "fruit"), "secret") == status


def test_hosts_get_what_file_and_environment_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRHYTHM_EPOCHS", "4")
    monkeypatch.setenv("POLYRHYTHM_SHARDS", "2")
    path = tmp_path / "job.toml"
    path.write_text("on = 'ray'\njob = 'fruit'\nepochs = 3\nnproc-per-node = 2\nfull-duplex = true\n", encoding="utf-8")
    made = ordered("--config", str(path), "--policy=asp", "train.py")
    assert (made.job, made.resources) == ("fruit", {"CPU": 2.0})
    given = made.arguments(0, "nowhere:1")
    assert sorted(given[:5]) == ["--epochs=3", "--full-duplex", "--nproc-per-node=2", "--policy=asp", "--shards=2"]
    assert given[5:] == ["--job", "fruit", "train.py"]
    assert made.overruled == (f"epochs 3 of {path} holds; 4 of POLYRHYTHM_EPOCHS is overruled",)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--on", "ray", "--node-rank", "1"], "--node-rank is found out with --on ray; leave it out"),
        (["--on", "ray", "--rdzv-endpoint", "a:1"], "--rdzv-endpoint is found out with --on ray"),
        (["--on", "ray", "--worker-gpus", "-1"], "--worker-gpus must be at least 0 but got -1"),
        (["--on", "ray", "--policy", "apx"], "unknown policy 'apx'"),
        (["--worker-gpus", "1"], "--worker-gpus is for --on ray"),
        (["--on", "ray"], r"--on ray needs Ray; install it with: pip install 'polyrhythm\[ray\]'"),
    ],
)
def test_what_cannot_be_placed_is_one_line(words: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("POLYRHYTHM_TOKEN", "secret")
    with pytest.raises(PolyrhythmError, match=message):
        launch_anywhere([*words, "train.py"])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("worker-gpus = 1", "worker-gpus in job.toml is for --on ray"),
        ("on = 'ray'\nworker-gpus = -1", "worker-gpus in job.toml must be at least 0 but got -1"),
        ("on = 'ray'\nnode-rank = 1", "node-rank in job.toml is found out with --on ray"),
        ("on = 'ray'\nnnodes = '1:2'", "nnodes in job.toml 1:2 with --on ray"),
        ("on = 'ray'\ngroup-size = 2", "group-size in job.toml 2 and --on ray cannot go together"),
    ],
)
def test_a_key_of_a_job_file_is_called_as_it_is_there(
    content: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text(content, encoding="utf-8")
    with pytest.raises(PolyrhythmError, match=f"^{message}"):
        read_order(["--config", "job.toml", "train.py"])


def test_a_variable_is_called_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRHYTHM_WORKER_GPUS", "1")
    with pytest.raises(PolyrhythmError, match=r"^POLYRHYTHM_WORKER_GPUS is for --on ray"):
        read_order(["train.py"])


def test_a_host_without_two_successive_ports_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were looked for without end."""
    tried = list[socket.socket]()

    def reserve_port(port: int = 0) -> socket.socket:
        if port:
            raise UsageError(f"port {port} is needed")
        tried.append(socket.create_server(("127.0.0.1", 0)))
        return tried[-1]

    monkeypatch.setattr(placement, "reserve_port", reserve_port)
    with pytest.raises(UnreachableError, match=f"no two successive ports that are free, of {PAIRS} tried"):
        reserve_pair()
    assert all(sock.fileno() == -1 for sock in tried)


class OwnHandler:
    """What Ray does to its driver: it takes SIGTERM, which may come while it connects."""

    def __init__(self, comes: bool) -> None:
        self.comes = comes

    def is_initialized(self) -> bool:
        return False

    def init(self, **_: object) -> None:
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(number))
        if self.comes:
            signal.raise_signal(signal.SIGTERM)


def connect_and_end() -> None:
    connected()
    signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("comes", [True, False], ids=["while it connects", "later"])
def test_sigterm_ends_a_command_on_ray_as_any_other(comes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "ray_part", lambda _: OwnHandler(comes))
    with early_end.by_signals():
        with pytest.raises(EndedError):
            connect_and_end()
        assert early_end.by_sigterm


def test_a_program_that_connects_by_itself_has_the_handler_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placement, "ray_part", lambda _: OwnHandler(comes=False))
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit):
            connect_and_end()
    finally:
        signal.signal(signal.SIGTERM, before)
