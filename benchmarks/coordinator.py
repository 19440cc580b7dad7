"""What one coordinator can do: decisions a second, how long a grant takes, memory and start-up, by number of workers.

The coordinator is a process as in a job, with one shard. The workers are thin: many connections of one process, each
with its heartbeats, which enter phases, say that a step is over every 100 ms, and push a gradient of 5 k numbers
through shared memory where the policy has servers. They compute nothing and exchange nothing among themselves. So the
coordinator sees a job whose workers are all equally fast, which is the most that it can be asked at a time.

A grant's time is that from a worker's report to its permission for the next step (ASP, SSP), or from the last report
before all meet (ESync), where the time in which one process reads what all workers are sent counts, too. As in a
collective, nobody has taken part or goes on before all have heard that they meet. In synchronous mode (BSP, SelSync)
permissions come ahead, and it is how long a worker stands without one. The processor time of the coordinator for each
report says where it ends: at one core that is used up. `--find-end` halves the steps until it does not hold any more.
Exits with 1 if 256 workers at steps of 100 ms have a p99 over 5 ms or take more than a core.
"""

import argparse
import gc
import heapq
import os
import sys
import time
from collections import deque
from functools import partial
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import quantiles
from typing import Any

import msgspec
import torch
from rich.console import Console
from rich.table import Table

from polyrhythm.core.epoch_plan import EpochPlan
from polyrhythm.core.placement import runtime_placement
from polyrhythm.core.token_window import PERIOD_S
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.coordinator.process import serve
from polyrhythm.runtime.wire import protocol as control
from polyrhythm.runtime.wire.connection import listen
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.frames import encode
from polyrhythm.runtime.wire.handshake import join
from polyrhythm.runtime.wire.job_config import JobConfig, coordinator_address
from polyrhythm.runtime.wire.segments import packed
from polyrhythm.runtime.wire.shard_protocol import FromShard, Hello, Layout, OptimizerSpec, Parameter
from polyrhythm.runtime.worker.shard_client import ShardClient
from polyrhythm.training.optimizer import OptimizerState

WORKERS, POLICIES = (8, 32, 64, 128, 256), ("bsp", "asp", "ssp:3", "selsync:0.3", "esync")
PARAMETERS, STEP_S, BEAT_S, FOREVER = 5_000, 0.1, 1.0, 10**9
P99_S = 0.005
FORK, CONSOLE = get_context("fork"), Console(width=120)


class ThinWorker:
    """Says what a worker says. `due_s` is when its step is over."""

    def __init__(self, crowd: "Crowd", rank: int, workers: int, address: str) -> None:
        self.crowd, self.rank, self.workers = crowd, rank, workers
        self.inbox: deque[Any] = deque()
        self.client = ShardClient(crowd.loop, rank, self.hear)
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(FromShard | control.ToWorker | control.JobInfo)
        self.channel = self.client.connect(address, Hello(crowd.job, "worker", rank), decoder)
        self.layout = Layout(((Parameter("w", (PARAMETERS,)),),))
        self.client.open(self.layout, OptimizerSpec("SGD", {"lr": 0.0}))
        beats: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(control.Cut | control.Propose | control.Heartbeat)
        self.heart = join(crowd.loop, address, Hello(crowd.job, "heartbeat", rank), beats, self)
        self.due_s = self.sent_s = self.stood_s = 0.0
        self.step = self.steps = 0
        self.number: int | None = None
        self.granted = self.meets = False
        self.tokens: deque[control.Token] = deque()
        self.told_s = 0.0

    # -- of the heartbeat ----------------------------------------------------------------------------------------------

    def received(self, message: Any) -> None:
        del message

    def destination(self, message: Any, payload: Any) -> memoryview:
        raise AssertionError(message)

    def lost(self, reason: str) -> None:
        self.crowd.ended = self.crowd.ended or reason

    # -- of the coordinator --------------------------------------------------------------------------------------------

    def hear(self, message: Any) -> None:
        self.inbox.append((time.perf_counter(), message))
        self.crowd.heard.append(self)

    def follow(self) -> None:
        while self.inbox:
            self.do(*self.inbox.popleft())

    def do(self, at_s: float, message: Any) -> None:
        match message:
            case control.Go():
                if self.sent_s:
                    self.crowd.grants.append(at_s - self.sent_s)
                self.number, self.sent_s, self.granted = message.number, 0.0, True
                self.go_on()
            case control.Token():
                self.tokens.append(message)
                if self.stood_s and message.step >= self.step:
                    self.crowd.grants.append(at_s - self.stood_s)
                    self.stood_s = 0.0
                    self.made()
            case control.TakePart():
                self.sent_s, self.meets = self.crowd.told_s, True
                self.crowd.meet(self, message.number)
            case control.SynchronousSteps():
                self.step = 0
                self.tokens.clear()
                self.steps = EpochPlan(message.ranges, self.workers, message.batch_size).steps
                self.crowd.later(self)
            case control.Phase():
                self.enter(message)

    def enter(self, phase: control.Phase) -> None:
        policy = parse_policy(phase.policy)
        self.placement = runtime_placement(policy)
        self.measures = policy.traits.placement == "every_rank"
        if phase.state == "upload" and phase.source == self.rank:
            self.client.upload(torch.zeros(PARAMETERS), OptimizerState({}, {}), phase.version)
        self.channel.send(control.Entered(phase.number))

    # -- steps ---------------------------------------------------------------------------------------------------------

    def took_part(self, number: int) -> None:
        self.meets = False
        self.channel.send(control.TookPart(number))
        self.go_on()

    def go_on(self) -> None:
        """Its next step begins once it is granted, and not while it meets others."""
        if self.granted and not self.meets:
            self.granted = False
            self.crowd.later(self)

    def over(self) -> None:
        """A step is over; its report goes out."""
        self.crowd.reports += 1
        if self.placement == "servers":
            assert self.number is not None
            buffer = self.client.put(self.number, torch.Tensor.zero_)
            self.channel.send(control.Pushed(self.number, 1, STEP_S, 0.0, settings=({"lr": 0.0},), buffer=buffer))
            self.sent_s = self.crowd.told_s = time.perf_counter()
        elif self.placement == "coordinator":
            assert self.number is not None
            self.channel.send(control.LocalStepDone(self.number, 1, STEP_S, 0.0))
            self.sent_s = self.crowd.told_s = time.perf_counter()
        elif self.tokens and self.tokens[-1].step >= self.step:
            self.crowd.grants.append(0.0)
            self.made()
        else:
            self.stood_s = time.perf_counter()

    def made(self) -> None:
        """As `SynchronousMode` tells of its steps."""
        while self.tokens[0].step < self.step:
            self.tokens.popleft()
        records = packed(control.MeasuredStep(1.0)) * self.workers if self.measures else b""
        now = time.perf_counter()
        made = control.Stepped(self.step, 1, STEP_S, self.step + 1, wait_s=0.0, records=records, at_s=now)
        self.channel.hold(encode(made))
        if self.step == self.tokens[0].tell or now - self.told_s > 2 * PERIOD_S:
            self.told_s = now
            self.channel.release()
        self.step += 1
        self.crowd.later(self)


class Crowd:
    """All thin workers of one process."""

    def __init__(self, job: str, step_s: float) -> None:
        self.job, self.step_s, self.ended = job, step_s, ""
        self.loop = Loop(spin_s=0.0)
        self.heard: deque[ThinWorker] = deque()
        self.due: list[tuple[float, int, ThinWorker]] = []
        self.grants: list[float] = []
        self.reports = self.count = 0
        self.told_s = 0.0
        self.meeting: list[ThinWorker] = []

    def meet(self, worker: ThinWorker, number: int) -> None:
        """An exchange is over for everyone when its last member has come."""
        self.meeting.append(worker)
        if len(self.meeting) == worker.workers:
            for member in self.meeting:
                member.took_part(number)
            self.meeting.clear()

    def later(self, worker: ThinWorker) -> None:
        """Its next step is over a step's time after the last one was due, unless that is long ago."""
        now = time.perf_counter()
        worker.due_s = max((worker.due_s or now + self.step_s * worker.rank / worker.workers) + self.step_s, now)
        self.count += 1
        heapq.heappush(self.due, (worker.due_s, self.count, worker))

    def run(self, until_s: float) -> None:
        while (now := time.perf_counter()) < until_s:
            while self.due and self.due[0][0] <= now:
                heapq.heappop(self.due)[2].over()
            wait_s = min(until_s, self.due[0][0] if self.due else until_s) - time.perf_counter()
            self.loop.step(max(wait_s, 0.0))
            while self.heard:
                self.heard.popleft().follow()


def serve_job(config: JobConfig, ready: Connection) -> None:
    listener = listen(coordinator_address(config.job))
    ready.send(None)
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (its log, until the process ends)
    gc.collect()
    gc.freeze()  # as the process does from which a job forks its coordinator
    os._exit(serve(config, [listener]))


def processor_s(process: int) -> float:
    """Of all its threads; the usual counts miss what takes less than a tick."""
    threads = Path(f"/proc/{process}/task").glob("*/schedstat")
    return sum(int(thread.read_text().split()[0]) for thread in threads) / 1e9


def own_bytes(process: int) -> int:
    """Memory of a process that is not shared with others."""
    rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
    private = [line.split()[1] for line in rollup.splitlines() if line.startswith("Private_Dirty")]
    return 1024 * int(private[0])


def crowd_of(job: str, workers: int, step_s: float, seconds: float, answers: Connection) -> None:
    """Body of the workers' process."""
    torch.set_num_threads(1)
    coordinator, crowd, start = answers.recv(), Crowd(job, step_s), time.perf_counter()
    everyone = [ThinWorker(crowd, 0, workers, coordinator_address(job))]
    before = own_bytes(coordinator)  # the first one has brought what serves all
    everyone += [ThinWorker(crowd, rank, workers, coordinator_address(job)) for rank in range(1, workers)]
    for worker in everyone:
        worker.channel.send(control.Ready(0, FOREVER, 1))
        # Those of as many processes do not come at once, each second, as here they would.
        crowd.loop.call_later(BEAT_S * worker.rank / workers, partial(beat, crowd, worker))
    while not crowd.reports and time.perf_counter() - start < 60:
        crowd.run(time.perf_counter() + 0.05)
    start_up_s = time.perf_counter() - start
    crowd.run(time.perf_counter() + 1.0)
    crowd.grants.clear()
    reports, used, began = crowd.reports, processor_s(coordinator), time.perf_counter()
    crowd.run(began + seconds)
    took = time.perf_counter() - began
    used, memory = processor_s(coordinator) - used, own_bytes(coordinator) - before
    answers.send((crowd.reports - reports, took, used, crowd.grants, memory / (workers - 1), start_up_s, crowd.ended))
    os._exit(0)


def beat(crowd: Crowd, worker: ThinWorker) -> None:
    worker.heart.send(control.Heartbeat())
    crowd.loop.call_later(BEAT_S, lambda: beat(crowd, worker))


def measure(policy: str, workers: int, step_s: float, seconds: float, table: Table) -> bool:
    """One job; whether it held."""
    CONSOLE.print(f"{policy}, {workers} workers", end="\r")
    config = JobConfig(job=f"crowd-{os.getpid()}-{workers}", policy=policy, workers=workers, hang_after=60.0)
    ready, there = FORK.Pipe()
    coordinator = FORK.Process(target=serve_job, args=(config, there))
    coordinator.start()
    ready.recv()
    answers, others = FORK.Pipe()
    crowd = FORK.Process(target=crowd_of, args=(config.job, workers, step_s, seconds, others))
    crowd.start()
    answers.send(coordinator.pid)
    others.close()
    reports, took, used, grants, memory, start_up_s, ended = answers.recv()
    crowd.join()
    coordinator.terminate()
    coordinator.join()
    marks = quantiles(grants, n=100) if len(grants) > 1 else [float("inf")] * 99
    rate, wanted = reports / took, workers / step_s
    held = not ended and rate >= 0.95 * wanted and marks[98] <= P99_S and used <= took
    table.add_row(
        policy,
        str(workers),
        f"{rate:,.0f} of {wanted:,.0f}",
        f"{1e3 * marks[49]:.2f}",
        f"{1e3 * marks[98]:.2f}",
        f"{1e6 * used / max(reports, 1):.0f}",
        f"{used / took:.0%}",
        f"{memory / 1e3:.0f}",
        f"{start_up_s:.2f}",
        "ok" if held else "MISSED",
    )
    return held


def find_end(policy: str, workers: int, seconds: float, table: Table) -> None:
    step_s = STEP_S
    while measure(policy, workers, step_s, seconds, table):
        step_s /= 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--find-end", action="store_true", help="halve the steps until it does not hold")
    arguments = parser.parse_args()
    columns = "policy", "workers", "reports/s", "p50 ms", "p99 ms", "us a report", "of a core", "kB a worker", "start s"
    table, met = Table(*columns, ""), []
    for policy in arguments.policies:
        for workers in arguments.workers:
            if arguments.find_end:
                find_end(policy, workers, arguments.seconds, table)
            else:
                met.append(measure(policy, workers, STEP_S, arguments.seconds, table))
    CONSOLE.print(table)
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
