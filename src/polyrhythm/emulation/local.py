"""One run on real workers of this host: a coordinator and worker processes under a policy, at the pace of emulated
devices.

The workers run `polyrhythm.emulation.trainer` in the environment of ``polyrhythm run``. The coordinator measures; the
model is evaluated at the end of each epoch, but after the job, from parameters that a worker has kept, so that time
stands still for it as in the simulator. Workers share this host's memory, but for those with a thin link of their own.
"""

import gc
import math
import multiprocessing
import os
import re
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import msgspec
import torch

from polyrhythm.core import Policy
from polyrhythm.core.placement import runtime_placement
from polyrhythm.emulation.pace import Emulation
from polyrhythm.emulation.trainer import Received, TrainerPlan, main, snapshot
from polyrhythm.errors import BROKEN, DivergedError, JobError, PolicyError, ScenarioError
from polyrhythm.runtime.coordinator.process import serve
from polyrhythm.runtime.coordinator.recorder import phase_file, phase_of
from polyrhythm.runtime.launch.nodes import ALONE
from polyrhythm.runtime.launch.rendezvous import COORDINATOR, open_addresses, port_of, reserve_port, store_port
from polyrhythm.runtime.launch.torchrun import worker_environment
from polyrhythm.runtime.wire.credentials import make_token
from polyrhythm.runtime.wire.job_config import Averaging, JobConfig
from polyrhythm.runtime.wire.parent_death import end_with_starter, interrupts_held
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.runtime.wire.rate_limit import RATE
from polyrhythm.telemetry import Figures, Mark, Meter, RunResult
from polyrhythm.telemetry.folders import temporary_folder
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.task import Quality, Task
from polyrhythm.training.divergence import DIVERGED
from polyrhythm.training.optimizer import check_options, configured_options, optimizer_class

LOOK_S = 0.1
"""How often the processes are looked after."""

PRELOADED = (
    "polyrhythm.emulation.trainer",
    "polyrhythm.runtime.coordinator.process",
    "torch._dynamo",
    "sklearn.datasets",
    "sklearn.model_selection",
)
"""Modules that the coordinator, and workers of the built-in tasks, import at some time."""

GRACE_S = 2.0
"""How long a process may take to end once its part is over."""


class LocalRun(NamedTuple):
    """What to run."""

    name: str
    policy: Policy[Any]
    training: TrainingConfig
    seed: int
    emulations: Sequence[Emulation]
    target: float | None = None
    averaging: Averaging = "ring"

    def epochs(self, train_samples: int) -> int:
        return max(1, round(self.training.workload_samples(train_samples) / train_samples))


def run_local(run: LocalRun, task: Task, trace: Path | None = None) -> RunResult:
    """Start the processes, wait for their end, and evaluate what they have learned.

    Args:
        run: see `LocalRun`.
        task: that of its training, in memory.
        trace: file for the coordinator's trace; a further phase, such as after a death in synchronous mode, gets a file
            of its own.

    Returns:
        What was measured, from the first step to the end of the last epoch; of a run that diverged, status "diverged"
        and what was measured up to the last epoch before.

    Raises:
        JobError: if a process fails.
    """
    check_run(run)
    started = time.perf_counter()
    with temporary_folder() as name:
        folder = Path(name)
        message = train(run, folder, run.epochs(len(task.train)))
        figures = read_figures(run, folder)
        curve = Meter(run.target)
        try:
            evaluate(curve, run, task, folder, figures.epochs)
        except DivergedError as error:
            message = message or str(error)
        result = finished(run, figures.result, curve)
        enter_injected(result, folder)
        result.trace_path = keep_traces(folder / "traces", trace)
    if message:
        result.status, result.message = "diverged", message
    elif len(figures.epochs) < run.epochs(len(task.train)):
        raise JobError(f"the job ended after {len(figures.epochs)} epochs because no worker was left")
    result.wall_s = time.perf_counter() - started
    return result


def check_run(run: LocalRun) -> None:
    check_options(optimizer_class(run.training.optimizer), configured_options(run.training))
    if runtime_placement(run.policy) != "every_rank" and run.training.injection is not None:
        raise ScenarioError(
            f"training.injection needs workers that make their steps together, but policy {run.policy.spec} lets them "
            "run apart; use bsp, local, fedavg, diloco or selsync"
        )


def train(run: LocalRun, folder: Path, epochs: int) -> str:
    """Run the job to its end; why it diverged, or nothing."""
    spec = run.policy.spec
    plan = TrainerPlan(run.training, run.seed, epochs, list(run.emulations))
    (folder / "plan").write_bytes(msgspec.msgpack.encode(plan))
    rates = [emulation.bytes_per_s for emulation in run.emulations]
    kept = {rate: reserve_port() for rate in sorted({*rates} - {math.inf})}
    addresses_ = {rate: f"tcp:127.0.0.1:{port_of(port)}" for rate, port in kept.items()}
    config = JobConfig(
        job=uuid.uuid4().hex[:12],
        policy=spec,
        workers=len(run.emulations),
        listen=tuple(addresses_.values()),
        token=make_token(),
        rates={address_: rate for rate, address_ in addresses_.items()},
        epochs=epochs,
        lr_convention=run.training.lr_convention,
        compensation=run.training.compensation,
        compress=run.training.compression,
        averaging=run.averaging,
        averaged_state=run.training.averaged_state,
        delta_rate=run.training.delta_rate,
        on_divergence="rollback" if run.training.rollback else "ignore",
        divergence=run.training.divergence,
        trace=str(folder / "traces"),
        figures=str(folder / "figures.json"),
        given={"epochs": "the training"},
    )
    mortal = {rank for rank, emulation in enumerate(run.emulations) if emulation.deaths}
    with ExitStack() as stack:
        for port in kept.values():
            stack.enter_context(port)
        return stack.enter_context(JobProcesses(config, folder, mortal, links=rates)).wait()


class JobProcesses:
    """The processes of one job; none is left when the ``with`` block ends, however it does.

    Args:
        config: of the job.
        folder: what the workers are given, and where each process logs.
        mortal: ranks that may be killed: by themselves, or by the coordinator when they hang.
        work: what each worker runs; its exit code.
        links: rate of each worker's link, if they are not all unlimited; the config's `rates` have an address for each.
    """

    def __init__(
        self,
        config: JobConfig,
        folder: Path,
        mortal: Collection[int],
        work: Callable[[Path], int] = main,
        links: Sequence[float] = (),
    ) -> None:
        self._links = links
        self._config, self._folder, self._mortal, self._work = config, folder, mortal, work
        self._workers: dict[int, BaseProcess] = {}

    def __enter__(self) -> "JobProcesses":
        with ExitStack() as stack:
            addresses_ = open_addresses(self._config, stack)
            self._coordinator = self._copy("coordinator", {}, serve, self._config, addresses_)
            self._coordinator.start()
        self._store_port = ExitStack()
        port = self._store_port.enter_context(store_port(ALONE))
        try:
            for rank in range(self._config.workers):
                environment = worker_environment(self._config, self._config.workers, rank, port) | self._link(rank)
                self._workers[rank] = self._copy(f"worker-{rank}", environment, self._work, self._folder)
                self._workers[rank].start()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def wait(self) -> str:
        """Until the coordinator ends, after the last worker; why the run diverged, or nothing.

        Raises:
            PolicyError: if the policy has broken its contract.
            JobError: as soon as a process fails; its last words.
        """
        over = False
        while not over:
            self._coordinator.join(LOOK_S)
            over = self._coordinator.exitcode is not None
            for rank, process in self._workers.items():
                if over:
                    process.join(GRACE_S)
                if process.exitcode == BROKEN:
                    raise PolicyError(self._last_words(f"worker-{rank}"))
                if process.exitcode == DIVERGED:
                    return self._last_words(f"worker-{rank}")
                if process.exitcode not in (None, 0, -signal.SIGKILL if rank in self._mortal else 0):
                    raise JobError(f"worker {rank} failed: {self._last_words(f'worker-{rank}')}")
        if self._coordinator.exitcode == BROKEN:
            raise PolicyError(self._last_words("coordinator").removeprefix("polyrhythm coordinator: "))
        if self._coordinator.exitcode:
            raise JobError(f"the coordinator failed: {self._last_words('coordinator')}")
        return ""

    @property
    def pids(self) -> tuple[int | None, ...]:
        """Ids of all processes, the coordinator first."""
        return self._coordinator.pid, *(process.pid for process in self._workers.values())

    def _end(self) -> None:
        """Workers have nothing to tidy up; the coordinator ends by itself when they are gone, unless it never saw
        one.
        """
        for process in self._workers.values():
            if process.pid is not None:  # the one that was about to start has none
                process.kill()
                process.join()
        self._coordinator.join(GRACE_S if self._workers else 0.0)
        self._coordinator.kill()
        self._coordinator.join()
        self._store_port.close()

    def _link(self, rank: int) -> dict[str, str]:
        addresses_ = {rate: address_ for address_, rate in self._config.rates.items()}
        rate = self._links[rank] if self._links else math.inf
        if rate not in addresses_:
            return {}
        address = Address(addresses_[rate], self._config.job, self._config.token)
        return {COORDINATOR: msgspec.json.encode(address).decode(), RATE: str(rate)}

    def _copy(self, name: str, *given: Any) -> BaseProcess:
        self._log(name).touch()
        return fork_server_context().Process(target=live, args=(self._log(name), *given))

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _last_words(self, name: str) -> str:
        lines = self._log(name).read_text(encoding="utf-8", errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


@cache
def fork_server_context() -> ForkServerContext:
    """Makes workers as copies of one process that has imported what they need, which alone takes each seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    with interrupts_held():
        forkserver.ensure_running()
    return context


def live(log: Path, environment: dict[str, str], work: Callable[..., int | None], *given: Any) -> None:
    """A process, from its first moment on; what it says on stderr goes to its log."""
    gc.freeze()  # what the server has imported is no garbage; looking through it would also copy its memory
    end_with_starter()
    os.environ.update(environment)
    with open(log, "wb") as stream:
        os.dup2(stream.fileno(), sys.stderr.fileno())
    sys.exit(work(*given))


def read_figures(run: LocalRun, folder: Path) -> Figures:
    """What the coordinator has measured; nothing if it was ended before it saw a worker."""
    path = folder / "figures.json"
    if path.exists():
        return msgspec.json.decode(path.read_bytes(), type=Figures)
    nothing = RunResult(
        scenario=run.name,
        policy=run.policy.spec,
        seed=run.seed,
        where="local",
        workers=len(run.emulations),
        batch_size=0,
    )
    return Figures(nothing, [])


def evaluate(curve: Meter, run: LocalRun, task: Task, folder: Path, marks: Sequence[Mark]) -> None:
    """Quality at the end of each epoch, entered into `curve`.

    Raises:
        DivergedError: when the parameters or the loss are not finite.
    """
    model = task.build(run.seed)
    for epoch, mark in enumerate(marks):
        path = snapshot(folder, epoch)
        if not path.exists():  # whoever was to keep it has died in that moment
            continue
        model.load_state_dict(torch.load(path, weights_only=True))
        quality = finite(task.evaluate(model), mark)
        curve.samples, curve.updates = mark.samples, mark.updates
        curve.evaluated(mark.time_s, quality.accuracy, quality.loss)


def finite(quality: Quality, mark: Mark) -> Quality:
    if not math.isfinite(quality.loss):
        raise DivergedError(
            f"the loss on the test set is {quality.loss} after {mark.samples} samples; lower training.learning_rate"
        )
    return quality


def finished(run: LocalRun, measured: RunResult, curve: Meter) -> RunResult:
    curve.fill_quality(measured)
    return msgspec.structs.replace(
        measured,
        scenario=run.name,
        seed=run.seed,
        batch_size=run.training.own_batch(len(run.emulations)),
        learning_rate=run.training.learning_rate,
        lr_convention=run.training.lr_convention,
    )


def enter_injected(result: RunResult, folder: Path) -> None:
    for path in sorted(folder.glob("injected-*.json")):
        received = msgspec.json.decode(path.read_bytes(), type=Received)
        result.injected_bytes += received.bytes
        for source, row in received.counts.items():
            result.injected_by_source.setdefault(source, {}).update(row)
            result.injected_samples += sum(row.values())


def keep_traces(folder: Path, trace: Path | None) -> str | None:
    """Put what was traced in the place of the same run's earlier trace, as any output takes that of the one before.

    Under ``polyrhythm run`` an earlier run is set aside, as a job's name does not say what ran: see
    `polyrhythm.runtime.coordinator.recorder.set_aside`. Here the name has policy and seed.
    """
    if trace is None:
        return None
    trace.parent.mkdir(parents=True, exist_ok=True)
    for earlier in [path for path in trace.parent.iterdir() if phase_of(path, re.escape(trace.stem))]:
        earlier.unlink()
    for source in folder.glob("*.jsonl"):
        number = phase_of(source)
        shutil.move(source, trace if number == 1 else trace.with_name(phase_file(trace.stem, number)))
    return str(trace)
