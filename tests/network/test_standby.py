"""The first host is lost, with the coordinator: its standby on another one goes on, and each sample counts once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests import proc
from tests.network.namespaces import Host, network, run
from tests.runtime.wire.tls.certificates import make_files

LIMIT_S = 180.0
HANG_AFTER_S = 3

SCRIPT = """
import os
import torch
import polyrhythm
from polyrhythm.testing.coordinates import SampleAttempts, train_attempts

model = SampleAttempts(2, 960)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
with polyrhythm.session(model, optimizer, epochs=2) as session:
    train_attempts(session, model, optimizer, 4, 0.02)
torch.save(model.weight.detach()[..., 0].clone(), f"{os.environ['OUT']}/{os.environ['RANK']}.pt")
"""

WATCH = """
import time
from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.launch import control_client as steer

while True:
    try:
        if steer.status(steer.at("apart", "tcp:10.77.0.1:29400", "secret"), 5.0).samples >= 300:
            break
    except PolyrhythmError:
        pass
"""


def on(host: Host, *command: str | Path) -> list[str | Path]:
    environment = ["env", "POLYRHYTHM_TOKEN=secret", "OMP_NUM_THREADS=1"]
    return ["ip", "netns", "exec", host.namespace, *environment, sys.executable, *command]


def start(hosts: list[Host], out: Path, policy: str, *more: str) -> None:
    script = out / "train.py"
    script.write_text(SCRIPT)
    for number, host in enumerate(hosts):
        place = ["--nnodes", str(len(hosts)), "--node-rank", str(number), "--rdzv-endpoint", "10.77.0.1"]
        standby = ["--rdzv-id", "apart", "--standby", "10.77.0.2", "--hang-after", str(HANG_AFTER_S)]
        command = [sys.executable, "-m", "polyrhythm", "run", *place, *standby, "--snapshot", "0.5s"]
        environment = ["env", "POLYRHYTHM_TOKEN=secret", "OMP_NUM_THREADS=1", f"OUT={out}"]
        host.start([*environment, *command, *more, "--policy", policy, script])


def kill(first: Host) -> None:
    """kill -9 of everything on a host."""
    for pid in run("ip", "netns", "pids", first.namespace).split():
        os.kill(int(pid), 9)


def cut(host: Host) -> None:
    """Its cable is pulled, for good."""
    switch = f"polyrhythm-{os.getpid()}-switch"
    run("ip", "-n", switch, "link", "set", f"port{host.namespace.rpartition('-')[2]}", "down")


def part(one: Host, other: Host) -> None:
    """Nothing travels between two hosts any more; others hear both."""
    for here, there in ((one, other), (other, one)):
        run("ip", "-n", here.namespace, "route", "add", "blackhole", f"{there.address}/32")


def coordinators(host: Host) -> list[int]:
    """The process that forks coordinators on a host, and the coordinator, or the standby alone."""
    pids = run("ip", "netns", "pids", host.namespace).split()
    return [int(pid) for pid in pids if "coordinator.process" in proc.read(f"/proc/{pid}/cmdline")]


def stop(first: Host) -> None:
    """Its coordinator hangs, until the job has gone on elsewhere."""
    for pid in coordinators(first):
        os.kill(pid, signal.SIGSTOP)


def test_the_job_goes_on_without_its_first_host(tmp_path: Path) -> None:
    """Of three hosts with a worker each; that of the first is lost with it."""
    with network(3, rate_mbit=1000) as hosts:
        start(hosts, tmp_path, "bsp")
        subprocess.run(on(hosts[1], "-c", WATCH), check=True, timeout=LIMIT_S)
        cut(hosts[0])
        codes, said = outcome(hosts)
    assert codes[0] != 0
    assert codes[1:] == [0, 0], said
    assert "the coordinator is started again here (1 of 5)" in said[1]
    assert "the job goes on with its standby on 10.77.0.2, and ends here" in said[0]
    check_exact(tmp_path, 1, 2)


def outcome(hosts: list[Host]) -> tuple[list[int | None], list[str]]:
    """How the launchers have ended, and what they have said."""
    said = ["\n".join(host.processes[0].communicate(timeout=LIMIT_S)) for host in hosts]
    return [host.processes[0].returncode for host in hosts], said


def check_exact(out: Path, *ranks: int) -> None:
    """Each sample was made once, by three workers, or by the two of them that were left."""
    import torch

    first, *others = (torch.load(out / f"{rank}.pt") for rank in ranks)
    assert all(torch.equal(first, other) for other in others)
    made = torch.isclose(first[..., None], torch.tensor([1 / 3, 1 / 2])).any(-1)
    assert bool(made.all()), (int((first == 0).sum()), int((~made).sum()))


def test_the_standby_takes_over_from_one_that_hangs(tmp_path: Path) -> None:
    """With several servers; it is woken up when the job has gone on without it."""
    with network(3, rate_mbit=1000) as hosts:
        start(hosts, tmp_path, "asp", "--shards", "2")
        subprocess.run(on(hosts[1], "-c", WATCH), check=True, timeout=LIMIT_S)
        stop(hosts[0])
        codes, said = outcome(hosts[1:])
        for pid in coordinators(hosts[0]):
            os.kill(pid, signal.SIGCONT)
        first, theirs = outcome(hosts[:1])
    assert codes == [0, 0], said + theirs
    assert "the coordinator is started again here (1 of 5)" in said[0]
    assert first != [0], theirs
    check_exact(tmp_path, 1, 2)


def test_with_tls_the_standby_takes_over(tmp_path: Path) -> None:
    files = make_files(tmp_path)
    flags = "--tls-cert", files.cert, "--tls-key", files.key, "--tls-ca", files.ca
    with network(3, rate_mbit=1000) as hosts:
        start(hosts, tmp_path, "asp", *map(str, flags))
        tls = {"POLYRHYTHM_TLS_CERT": files.cert, "POLYRHYTHM_TLS_KEY": files.key, "POLYRHYTHM_TLS_CA": files.ca}
        watch = on(hosts[1], "-c", WATCH)
        subprocess.run(watch, check=True, timeout=LIMIT_S, env={**os.environ, **tls})
        kill(hosts[0])
        codes, said = outcome(hosts[1:])
    assert codes == [0, 0], said
    check_exact(tmp_path, 1, 2)


def test_sums_on_servers_and_a_checkpoint_go_on_at_the_standby(tmp_path: Path) -> None:
    """Where both hosts see its folder; and the same command would go on from it."""
    folder = tmp_path / "checkpoints"
    with network(3, rate_mbit=1000) as hosts:
        sums = "--shards", "2", "--averaging", "server"
        start(hosts, tmp_path, "local:8", *sums, "--checkpoint", str(folder), "--every", "0.2s")
        subprocess.run(on(hosts[1], "-c", WATCH), check=True, timeout=LIMIT_S)
        kill(hosts[0])
        codes, said = outcome(hosts[1:])
    assert codes == [0, 0], said
    check_exact(tmp_path, 1, 2)
    assert list(folder.iterdir())


def test_without_its_standby_the_job_goes_on_where_it_is(tmp_path: Path) -> None:
    """The standby's host is lost, of three; then the coordinator is killed, and followed on its own host."""
    with network(3, rate_mbit=1000) as hosts:
        start(hosts, tmp_path, "bsp")
        subprocess.run(on(hosts[2], "-c", WATCH), check=True, timeout=LIMIT_S)
        cut(hosts[1])
        subprocess.run(on(hosts[2], "-c", WATCH.replace("300", "600")), check=True, timeout=LIMIT_S)
        os.kill(max(coordinators(hosts[0])), signal.SIGKILL)
        codes, said = outcome([hosts[0], hosts[2]])
    assert codes == [0, 0], said
    assert "it is started again (1 of 5)" in said[0]
    check_exact(tmp_path, 0, 2)


def test_of_three_hosts_the_standby_alone_hears_nothing_of_the_first(tmp_path: Path) -> None:
    """It takes over in vain: the third host is with the first."""
    with network(3, rate_mbit=1000) as hosts:
        start(hosts, tmp_path, "bsp")
        subprocess.run(on(hosts[2], "-c", WATCH), check=True, timeout=LIMIT_S)
        part(hosts[0], hosts[1])
        codes, said = outcome(hosts)
    assert (codes[0], codes[2]) == (0, 0), said
    assert codes[1] not in (None, 0)
    assert "the job goes on without it" in said[0]
    assert "Traceback" not in said[1]
    check_exact(tmp_path, 0, 2)


def test_a_standby_that_was_killed_is_there_again(tmp_path: Path) -> None:
    """Its launcher starts it again, and it gets the job's record anew."""
    with network(3, rate_mbit=1000) as hosts:
        start(hosts, tmp_path, "bsp")
        subprocess.run(on(hosts[1], "-c", WATCH), check=True, timeout=LIMIT_S)
        os.kill(coordinators(hosts[1])[0], signal.SIGKILL)
        codes, said = outcome(hosts)
    assert codes == [0, 0, 0], said
    assert "the standby was killed by SIGKILL; it is started again (1 of 5)" in said[1]
    check_exact(tmp_path, 0, 1, 2)


def test_a_host_without_the_first_and_the_standby_ends_with_one_line(tmp_path: Path) -> None:
    """Both are lost; whoever is left has nobody to turn to."""
    with network(3, rate_mbit=1000) as hosts:
        start(hosts, tmp_path, "bsp")
        subprocess.run(on(hosts[1], "-c", WATCH), check=True, timeout=LIMIT_S)
        kill(hosts[1])
        kill(hosts[0])
        _, errors = hosts[2].processes[0].communicate(timeout=LIMIT_S)
    assert hosts[2].processes[0].returncode not in (None, 0)
    assert "Traceback" not in errors
