"""Shards, workers and coordinators in processes of their own, and how they end."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import polyrhythm
from polyrhythm.errors import PolyrhythmError, ServerLostError, UsageError
from polyrhythm.runtime.server.shard_group import ShardProcess, ShardSettings
from polyrhythm.runtime.wire.shard_protocol import Hello
from polyrhythm.runtime.worker.shard_client import ShardClient
from polyrhythm.training.optimizer import OptimizerState
from tests.runtime.shard_bench import CLIENT, Bench

SETTINGS = ShardSettings("job", "secret", index=1, count=2)
LIMIT_S = 60.0


@pytest.fixture
def process() -> Iterator[ShardProcess]:
    process = ShardProcess(SETTINGS, f"unix:@polyrhythm-test-shard-{os.getpid()}")
    yield process
    with suppress(ProcessLookupError, ChildProcessError):  # a test may have seen its end
        os.kill(process.pid, signal.SIGKILL)
        os.waitpid(process.pid, 0)


@pytest.fixture
def bench(process: ShardProcess) -> Iterator[Bench]:
    """Shard 0 here, shard 1 in a process."""
    bench = Bench(others=False, shards=2, token="secret")
    process.join(bench.loop, bench.group, lambda reason: bench.lost.update({-1: reason}))
    bench.addresses.append(process.addresses[0])
    yield bench
    bench.close()


def test_a_shard_process_works_dies_and_is_missed(bench: Bench, process: ShardProcess) -> None:
    with pytest.raises(PolyrhythmError, match="is a job with the same id running"):
        ShardProcess(SETTINGS, process.addresses[0])
    with pytest.raises(UsageError, match="this is a parameter server, not for a control"):
        ShardClient(bench.loop, 2, print).connect(process.addresses[0], Hello("job", "control", 2), CLIENT)
    with pytest.raises(UsageError, match="this is a parameter server, not for a coordinator"):
        ShardClient(bench.loop, 2, print).connect(process.addresses[0], Hello("job", "coordinator", 2), CLIENT)
    worker = bench.worker(3)
    worker.upload(torch.zeros(bench.size), OptimizerState({}, {}), version=0)
    gradient = torch.arange(float(bench.size))
    bench.push(worker, 0, gradient)
    bench.apply((3, 0))
    assert torch.equal(bench.pull(worker, 1), -gradient)
    os.kill(process.pid, signal.SIGKILL)
    with pytest.raises(ServerLostError, match=r"rank 3 lost server 1 while version 2 was pulled: .*closed"):
        bench.pull(worker, 2)
    bench.until(lambda: -1 in bench.lost)
    assert "closed the connection" in bench.lost[-1]


def test_a_shard_process_ends_with_its_hub(bench: Bench, process: ShardProcess) -> None:
    bench.close()
    assert os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1]) == 0


WORKER = """
import os, sys, torch
from polyrhythm.runtime.worker.shard_client import ShardClient
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.shard_protocol import Hello
from tests.runtime.shard_bench import CLIENT, SIZES_LAYOUT, SGD

client = ShardClient(Loop(), 5, print)
client.connect(sys.argv[1], Hello("job", "worker", 5), CLIENT, "secret")
client.open(SIZES_LAYOUT, SGD)
client.push(0, torch.ones(64))
child = os.fork()  # as a loader worker is
if child == 0:
    print("ready", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("carrier", ["unix", "tcp"])
def test_a_killed_worker_is_missed_though_its_loader_lives_on(carrier: str) -> None:
    bench = Bench(carrier)
    paths = [str(Path(polyrhythm.__file__).parents[1]), str(Path(__file__).parents[3])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, bench.addresses[0]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert worker.stdout is not None
    assert worker.stdin is not None
    assert bench.loop.run_until(lambda: (5, 0) in bench.arrived or worker.poll(), LIMIT_S)
    assert worker.stdout.readline() == b"ready\n"
    worker.kill()
    bench.until(lambda: 5 in bench.lost)
    assert bench.lost[5] == "worker 5 closed the connection"
    worker.stdin.close()  # lets the child, which still holds the other end, go
    assert worker.stdout.read() == b""
    worker.stdout.close()
    worker.wait()
    bench.close()
