"""The launcher follows its coordinator for as long as anybody needs one."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any
from unittest.mock import patch

import pytest

from polyrhythm.errors import BROKEN, REFUSED
from polyrhythm.runtime.launch import control_client, process_watch, torchrun
from polyrhythm.runtime.launch.forked import RunningProcess
from polyrhythm.runtime.launch.preemption import LEFT
from polyrhythm.runtime.launch.restarts import STATUSES
from polyrhythm.runtime.wire.connection import listen
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.testing.processes import run_workers
from polyrhythm.training.divergence import DIVERGED
from tests.runtime.launch.test_hosts import first_line, free_port, outcome
from tests.runtime.places import Place

LEAVES_FIRST = """
with polyrhythm.session(model, optimizer) as session:
    for number, (x, y) in enumerate(session.loader(data, batch_size=2)):
        step(x, y)
        if rank == 0:
            session.leave()
        elif number == 3:
            os.open("goes-on", os.O_RDONLY)
    print("samples", session.metrics["samples"])
"""


def children(pid: int) -> Iterator[tuple[int, str]]:
    """Processes that a process has started, with their command lines."""
    for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split():
        yield int(child), Path(f"/proc/{child}/cmdline").read_text(encoding="utf-8")


def keeper_of(host: "Popen[str]") -> int:
    """The process that forks coordinators, once the worker of this host is gone."""
    while True:
        try:
            found = dict(children(host.pid))
        except OSError:  # one has ended meanwhile
            continue
        if len(found) == 1 and "coordinator.process" in (*found.values(),)[0]:
            return (*found,)[0]


def start_two_hosts(place: Place, script: str, *flags: str) -> tuple["Popen[str]", "Popen[str]"]:
    """The script waits where it reads from "goes-on"."""
    os.mkfifo(place.folder / "work" / "goes-on")
    where = *flags, f"--rdzv-endpoint=127.0.0.1:{free_port()}", f"--rdzv-id={place.mark}"
    return place.start(script, *where, "--node-rank=0"), place.start(script, *where, "--node-rank=1")


def test_a_coordinator_is_followed_after_the_last_worker_of_its_host(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other host's goes on."""
    monkeypatch.setenv("POLYRHYTHM_TOKEN", "secret")
    first, second = start_two_hosts(place, LEAVES_FIRST, "--nnodes=2", "--policy=bsp")
    first_line(first, "samples")
    os.kill(keeper_of(first), signal.SIGKILL)
    with (place.folder / "work" / "goes-on").open("w"):
        made, said = outcome(second)
    through, also = outcome(first)
    assert (through, made) == (0, 0), also + said
    assert "the coordinator was killed by SIGKILL; it is started again (1 of 5)" in also


def watch_without_answers(_: int, name: str) -> tuple[dict[int, int], list[str]]:
    """Two workers fail while the coordinator is stopped."""
    said = list[str]()
    with (
        listen(f"unix:@{name}"),
        Popen(["sleep", "1000"]) as coordinator,
        patch.object(process_watch, "LAST_S", 0.1),
        patch.object(process_watch, "say", lambda *lines: said.extend(lines)),
    ):
        workers: dict[int, RunningProcess] = {rank: Popen(["false"]) for rank in range(2)}
        address = Address(f"unix:@{name}", "job", "secret")
        return process_watch.ProcessWatch(address, coordinator, workers, 1e6, 1.0).wait(), said


def watch_ends(_: int, statuses: str) -> list[tuple[int, bool]]:
    """One worker has said why it ends, and another one has not; what the coordinator is told of each."""
    told = list[tuple[int, bool]]()
    os.environ[STATUSES] = statuses
    with patch.object(control_client, "absent", lambda _, rank, __, said: told.append((rank, said))):
        workers: dict[int, RunningProcess] = {rank: Popen(["sh", "-c", f"exit {REFUSED}"]) for rank in range(2)}
        process_watch.ProcessWatch(Address("unix:@none", "job", ""), None, workers, 1.0, 1.0).wait()
    return sorted(told)


def test_the_coordinator_hears_who_has_said_why_it_ends(tmp_path: Path) -> None:
    (tmp_path / "statuses").write_text(f"1 0 {REFUSED}\n")
    (told,) = run_workers(watch_ends, 1, str(tmp_path / "statuses"))
    assert told == [(0, False), (1, True)]


def watch_one_that_has_left(_: int, statuses: str) -> list[str]:
    """One worker fails while the process of another, which has left the job, has not ended yet; what is said."""
    said = list[str]()
    os.environ[STATUSES] = statuses
    last = Popen(["cat"], stdin=PIPE)

    def say(line: str) -> None:
        said.append(line)
        assert last.stdin is not None
        last.stdin.close()

    with patch.object(process_watch, "say", say):
        workers: dict[int, RunningProcess] = {0: Popen(["false"]), 1: last}
        process_watch.ProcessWatch(Address("unix:@none", "job", ""), None, workers, 1.0, 1.0).wait()
    return said


def test_who_has_left_does_not_go_on(tmp_path: Path) -> None:
    """Its process writes a last file, say."""
    (tmp_path / "statuses").write_text(f"1 0 {LEFT}\n")
    (said,) = run_workers(watch_one_that_has_left, 1, str(tmp_path / "statuses"))
    assert said == ["rank 0 failed with exit code 1"]


def launch_signalled(_: int, script: str) -> tuple[object, list[str]]:
    """SIGTERM comes when the first of two workers has been started."""
    start, said = torchrun.start_worker, list[str]()

    def start_and_signal(plan: torchrun.LaunchOrder, rank: int, *rest: Any) -> RunningProcess:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return start(plan, rank, *rest)

    with (
        patch.object(torchrun, "start_worker", start_and_signal),
        patch.object(process_watch, "say", lambda *lines: said.extend(lines)),
        pytest.raises(SystemExit) as ended,
    ):
        torchrun.launch(["--nproc-per-node=2", script])
    return ended.value.code, said


def test_a_signal_finds_the_launcher_while_it_starts_workers(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print()")
    (ended,) = run_workers(launch_signalled, 1, str(tmp_path / "script.py"))
    assert ended == (128 + signal.SIGTERM, ["SIGTERM: workers have 30 s to end; once more ends them at once"])


def test_a_silent_coordinator_does_not_keep_the_launcher() -> None:
    ((codes, said),) = run_workers(watch_without_answers, 1, f"silent-{os.getpid()}")
    assert codes == {0: 1, 1: 1}
    assert sorted(said[:2], key=len)[0].endswith("failed with exit code 1"), said
    assert said[2:] == ["the coordinator has not ended within 0.1 s of the last worker; it is ended"]


@pytest.mark.parametrize("statuses", [(REFUSED, DIVERGED, BROKEN), (LEFT, LEFT)])
def test_an_exit_status_of_the_script_is_not_the_jobs(place: Place, statuses: tuple[int, ...]) -> None:
    """What has a meaning of ours has it where we have ended the worker, or all of them where they have left."""
    done = place.run(f"sys.exit({statuses}[rank])", "--nproc-per-node", str(len(statuses)))
    assert done.returncode == 1, done.stderr
    for rank, status in enumerate(statuses):
        assert f"polyrhythm: rank {rank} failed with exit code {status}" in done.stderr
    assert "was asked to end" not in done.stderr


def test_a_script_that_is_refused_on_the_first_host_waits_for_no_other(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLYRHYTHM_TOKEN", "secret")
    where = ["--nnodes=1:3", f"--rdzv-endpoint=127.0.0.1:{free_port()}", f"--rdzv-id={place.mark}", "--policy=asp"]
    done = place.run("torch.distributed.init_process_group('gloo')", *where, "--nproc-per-node=2")
    assert done.returncode == REFUSED, done.stderr
    assert "init_process_group forms a group of all ranks, for good" in done.stderr
    ends = f"polyrhythm coordinator: job {place.mark} has no workers, and none has joined within 10 s; it ends"
    assert done.stderr.splitlines()[-1] == ends


OWN_DATA = """
if rank == 0:
    data = torch.utils.data.Subset(data, [])
    os.open("rank-1-is-there", os.O_RDONLY)
else:
    os.open("rank-1-is-there", os.O_WRONLY)
    os.open("goes-on", os.O_RDONLY)
with polyrhythm.session(model, optimizer) as session:
    for x, y in session.loader(data, batch_size=2):
        step(x, y)
    print("samples", session.metrics["samples"])
"""


def test_what_only_the_first_host_refuses_is_not_the_end_of_the_others(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may be about to join; it ended the job at once."""
    monkeypatch.setenv("POLYRHYTHM_TOKEN", "secret")
    os.mkfifo(place.folder / "work" / "rank-1-is-there")
    first, second = start_two_hosts(place, OWN_DATA, "--nnodes=1:2", "--policy=asp")
    assert first.stderr is not None
    assert any("rank 0 died before the first epoch" in line for line in first.stderr)
    with (place.folder / "work" / "goes-on").open("w"):
        made, said = outcome(second)
    through, also = outcome(first)
    assert (through, made) == (REFUSED, 0), also + said
    assert "samples 40" in said
