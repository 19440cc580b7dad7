"""Several hosts on one machine: a launcher each, over TCP on loopback."""

import socket
from collections import deque
from signal import SIGTERM
from subprocess import Popen, TimeoutExpired
from threading import Timer

import pytest
import torch
from typer.testing import CliRunner

from polyrhythm.cli.app import app
from polyrhythm.errors import PolicyError, RefusalError, UsageError
from polyrhythm.runtime.launch.gathering import HOSTS
from polyrhythm.runtime.launch.ray import reserve_pair
from polyrhythm.runtime.launch.rendezvous import port_of
from polyrhythm.runtime.launch.torchrun import read_command
from polyrhythm.runtime.script.group_patches import refuse_restarts, refuse_uncovered
from polyrhythm.runtime.wire.tls.cover import covered
from polyrhythm.runtime.wire.tls.files import CA, CERT, KEY, TlsFiles
from tests.runtime.places import LIMIT_S, Place
from tests.runtime.wire.tls.certificates import make_files

TRAINS = """
with polyrhythm.session(model, optimizer) as session:
    for _ in range(2):
        for x, y in session.loader(data, batch_size=2):
            step(x, y)
    print("samples", session.metrics["samples"])
"""


COUNTED = """
import time
from polyrhythm.testing.coordinates import SampleNumbers

EPOCHS, SAMPLES = 2, 240


class Coordinates(torch.nn.Linear):
    def forward(self, epoch, indices):
        return -self.weight[epoch, indices].sum()


model = Coordinates(SAMPLES, EPOCHS, bias=False)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
if rank:
    open("coming", "w").close()
with polyrhythm.session(model, optimizer) as session:
    for epoch in range(EPOCHS):
        for number, indices in enumerate(session.loader(SampleNumbers(SAMPLES), batch_size=2)):
            optimizer.zero_grad()
            model(epoch, indices).backward()
            time.sleep(0.05)
            optimizer.step()
            while (epoch, number) == (0, 3) and not os.path.exists("coming"):
                time.sleep(0.01)
            print("step", epoch, flush=True)
torch.save(model.weight.detach(), f"weights.{rank}")
"""


KEPT = deque[tuple[socket.socket, socket.socket]](maxlen=8)
"""Of the latest tests: a port that is only looked up is taken by any connection of others until it is used."""


def free_port() -> int:
    """One after which another one is free, too: torch's store is there."""
    KEPT.append(reserve_pair())
    return port_of(KEPT[-1][0])


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A token; what a command makes of its flags goes with the test."""
    monkeypatch.setenv("POLYRHYTHM_TOKEN", "secret")
    for name in (CERT, KEY, CA):
        monkeypatch.setenv(name, "")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return make_files(tmp_path_factory.mktemp("certificates"))


def with_tls(files: TlsFiles) -> list[str]:
    return [f"--tls-cert={files.cert}", f"--tls-key={files.key}", f"--tls-ca={files.ca}"]


def outcome(host: "Popen[str]") -> tuple[int, str]:
    """Exit status, and what was said."""
    with host:
        try:
            out, err = host.communicate(timeout=LIMIT_S)
        except TimeoutExpired:
            host.kill()
            raise
    return host.returncode, out + err


def start(place: Place, script: str, *flags: list[str]) -> list["Popen[str]"]:
    """A host for each list of its own flags."""
    where = ["--nnodes", str(len(flags)), "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", place.mark]
    return [place.start(script, *where, "--node-rank", str(rank), *own) for rank, own in enumerate(flags)]


def test_a_job_with_tls_trains_as_one_run_and_says_what_is_not_covered(place: Place, files: TlsFiles) -> None:
    flags = [*with_tls(files), "--policy", "asp"]
    script = f'print("run", os.environ["POLYRHYTHM_RUN_ID"]){TRAINS}'
    (first, said), (second, also) = map(outcome, start(place, script, flags, flags))
    assert (first, second) == (0, 0), said + also
    assert len({line for line in (said + also).splitlines() if line.startswith("run")}) == 1
    samples = [int(line.split()[1]) for line in (said + also).splitlines() if line.startswith("samples")]
    assert sum(samples) == 80
    assert len(samples) == 2
    for text in (said, also):
        assert text.count("polyrhythm: TLS covers the coordinator, the servers and ctl; torch's store") == 1


def test_a_host_without_it_is_told_so(place: Place, files: TlsFiles) -> None:
    first, second = start(place, TRAINS, [*with_tls(files), "--policy", "asp"], ["--policy", "asp"])
    code, said = outcome(second)
    assert code, said
    assert "if the job has TLS, give --tls-ca or POLYRHYTHM_TLS_CA" in said
    first.send_signal(SIGTERM)
    outcome(first)


def test_a_policy_whose_exchanges_are_not_covered_is_refused_before_anything_starts(files: TlsFiles) -> None:
    where = ["--nnodes", "2", "--rdzv-endpoint", "127.0.0.1:4000", *with_tls(files)]
    with pytest.raises(UsageError, match=r"policy selsync:0\.3 exchanges from worker to worker over gloo") as refused:
        read_command([*where, "--policy", "selsync:0.3", "train.py"])
    assert not isinstance(refused.value, PolicyError), "which has another exit status"
    read_command([*where, "--policy", "asp", "train.py"])


def test_a_host_with_another_number_of_workers_is_refused(place: Place) -> None:
    first, second = start(place, TRAINS, ["--nproc-per-node", "1"], ["--nproc-per-node", "2"])
    code, said = outcome(second)
    assert code == 2, said
    assert "host 0 has begun a job of 2 workers, and --nnodes and --nproc-per-node of this host make 4" in said
    first.send_signal(SIGTERM)
    outcome(first)


def test_a_host_with_another_policy_is_told_which_one_holds(place: Place) -> None:
    (code, said), (other, also) = map(outcome, start(place, TRAINS, ["--policy", "asp"], ["--policy", "bsp"]))
    assert (code, other) == (0, 0), said + also
    assert "policy asp of the job holds; bsp of --policy is overruled" in also


def test_so_is_that_which_the_script_has_chosen(place: Place, files: TlsFiles) -> None:
    (code, said), (other, _) = map(outcome, start(place, TRAINS, with_tls(files), with_tls(files)))
    assert code
    assert other
    assert "policy bsp exchanges from worker to worker over gloo or NCCL, which TLS does not cover; use one" in said


def test_on_one_host_nothing_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRHYTHM_TLS_CA", "none.pem")
    read_command(["--policy", "bsp", "train.py"])
    assert not covered()


def first_line(host: "Popen[str]", beginning: str) -> None:
    """Until a host has said so; one that says nothing is ended."""
    assert host.stdout is not None
    assert host.stderr is not None
    limit = Timer(LIMIT_S, host.kill)
    limit.start()
    try:
        if any(line.startswith(beginning) for line in host.stdout):
            return
        raise AssertionError(f"nobody has said {beginning!r}: {host.stderr.read()}")
    finally:
        limit.cancel()


def drain(port: int, job: str) -> None:
    """All workers of the host that has come over TCP."""
    done = CliRunner().invoke(app, ["ctl", job, "drain", "127.0.0.1", "--at", f"tcp:127.0.0.1:{port}"])
    assert done.exit_code == 0, done.output


def test_a_host_comes_in_the_middle_and_leaves_and_every_sample_is_made_once(place: Place) -> None:
    port = free_port()
    where = ["--nnodes=1:2", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-id={place.mark}", "--policy", "bsp"]
    first = place.start(COUNTED, *where, "--node-rank=0")
    first_line(first, "step 0")
    second = place.start(COUNTED, *where, "--node-rank=1")
    first_line(second, "step")
    drain(port, place.mark)
    left, said = outcome(second)
    through, also = outcome(first)
    assert (left, through) == (143, 0), said + also
    assert "host 1 is not there; the job begins without it, and it may come at any time" in also
    weight = torch.load(place.folder / "work" / "weights.0")
    assert {*weight.flatten().tolist()} == {0.5, 1.0}


def test_a_group_of_all_ranks_is_refused_where_ranks_come_and_go_or_it_is_in_the_clear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refuse_restarts()
    refuse_uncovered()
    monkeypatch.setenv(HOSTS, "1:2")
    with pytest.raises(RefusalError, match="--nnodes 1:2, and init_process_group forms a group of all ranks"):
        refuse_restarts()
    monkeypatch.setenv(CA, "ca.pem")
    with pytest.raises(RefusalError, match="over gloo or NCCL, which TLS does not cover"):
        refuse_uncovered()
