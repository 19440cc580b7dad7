"""Start a job's workers on this host, and its coordinator on the first, under the names and variables of torchrun.

Unlike torchrun, a worker that dies does not end the job: the coordinator tells the others, and they finish it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple

import msgspec

from polyrhythm.errors import BROKEN, PolyrhythmError, UsageError
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.launch.environments import become_worker, is_placed
from polyrhythm.runtime.launch.nodes import ALONE, Node, read_node
from polyrhythm.runtime.launch.rendezvous import COORDINATOR, start_coordinator, store_port, wait_for_coordinator
from polyrhythm.runtime.launch.run_flags import flag_of, from_call, make_parser, split_at_script
from polyrhythm.runtime.wire.config_sources import VARIABLES
from polyrhythm.runtime.wire.connection import ADDRESS
from polyrhythm.runtime.wire.job_config import TYPES, JobConfig, coordinator_address, make_config
from polyrhythm.runtime.wire.parent_death import dies_with_us
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.training.divergence import DIVERGED

ADAPT = "polyrhythm.runtime.script"
"""What runs a script in a worker, so that one that knows nothing of Polyrhythm takes part."""

PATIENCE_S = 7 * 86400.0
"""How long the coordinator waits for the first worker: a script may load data for hours, and the launcher sees who
dies.
"""

KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": 32 * 2**20, "MALLOC_TRIM_THRESHOLD_": 2**30}
"""For glibc, bytes: a worker keeps what a step has freed for the next one, instead of getting it anew page by page."""

GRACE_S = 5.0
"""How long workers may take to end after an interrupt."""


class LaunchOrder(NamedTuple):
    """What to start; `overruled` has a line for each setting about which two of its places differ."""

    config: JobConfig
    command: tuple[str, ...]
    processes: int
    node: Node = ALONE
    overruled: tuple[str, ...] = ()

    @property
    def ranks(self) -> range:
        return range(self.node.rank * self.processes, (self.node.rank + 1) * self.processes)

    @property
    def coordinator(self) -> Address:
        return coordinator_from(self.config, self.node)


def read_command(arguments: Sequence[str]) -> LaunchOrder:
    """What a command line asks for, with its job file and the environment; all is checked before a process starts.

    Raises:
        UsageError: for a flag that has no meaning here, or a value that cannot be.
    """
    parser = make_parser()
    flags, script = split_at_script(parser, arguments)
    chosen, overruled = from_call(parser, flags, os.environ)
    config = make_config({name: given for name, given in chosen.items() if name in TYPES})
    processes, node = read_processes(config.nproc_per_node), read_node(config)
    python = [] if config.no_python else [sys.executable, "-u", "-m", ADAPT, *(["-m"] if config.module else [])]
    placed = msgspec.structs.replace(
        config,
        job=config.job or (config.rdzv_id if node.count > 1 else uuid.uuid4().hex[:8]),
        token=node.token,
        listen=node.listen,
        workers=processes * node.count,
    )
    return LaunchOrder(placed, (*python, *script), processes, node, overruled)


def read_processes(value: str) -> int:
    if value in ("cpu", "auto", "gpu"):
        import torch

        gpus = torch.cuda.device_count()
        return gpus if value == "gpu" or (value == "auto" and gpus) else os.cpu_count() or 1
    if not value.isdecimal() or int(value) < 1:
        raise UsageError(f"--nproc-per-node must be a number of at least 1, auto, cpu or gpu but got {value!r}")
    return int(value)


def launch(arguments: Sequence[str]) -> int:
    """Run a job to its end; its exit status: 0, 3 if it diverged, or 1 if a worker failed by itself or none finished.

    In a process that torchrun, Slurm or an operator has started as a worker, go on as that worker.
    """
    plan = read_command(arguments)
    if is_placed([flag_of(name) for name, where in plan.config.given.items() if where != VARIABLES[name]], os.environ):
        become_worker(plan.config, plan.command, plan.overruled)
    with store_port(plan.node) as port:
        codes = run_workers(plan, port)
    if DIVERGED in codes.values():
        return DIVERGED
    return 1 if any(code > 0 for code in codes.values()) or all(codes.values()) else 0


def run_workers(plan: LaunchOrder, port: int) -> dict[int, int]:
    """Start the workers of this host, and the coordinator if it is the first, and wait for them; exit codes by rank."""
    config = msgspec.structs.replace(plan.config, patience_s=PATIENCE_S)
    coordinator = None if plan.node.rank else start_coordinator(config, bound=True)
    announce(plan)
    if coordinator is None:
        wait_for_coordinator(plan.coordinator.coordinator)
    workers = {rank: start_worker(plan, rank, port) for rank in plan.ranks}
    return ProcessWatch(plan.coordinator, coordinator, workers, GRACE_S if plan.node.count == 1 else None).wait()


def announce(plan: LaunchOrder) -> None:
    config, node = plan.config, plan.node
    place = f", host {node.rank} of {node.count}" if node.count > 1 else ""
    at = f" --at {node.coordinator}" if node.rank else ""
    policy = config.policy if "policy" in config.given else f"{config.policy}, unless the script names another"
    print(
        f"polyrhythm: job {config.job}, policy {policy}, {config.workers} workers{place}; "
        f"to switch: polyrhythm ctl {config.job}{at} switch asp",
        file=sys.stderr,
    )
    if not node.rank:
        say(plan.overruled)


def say(lines: Sequence[str]) -> None:
    """A line each on stderr."""
    for line in lines:
        print(f"polyrhythm: {line}", file=sys.stderr, flush=True)


def start_worker(plan: LaunchOrder, rank: int, port: int) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, **worker_environment(plan.config, plan.processes, rank, port, plan.node)}
    try:
        return subprocess.Popen(plan.command, env=environment, preexec_fn=dies_with_us())
    except OSError as error:
        raise UsageError(f"cannot start {plan.command[0]}: {error.strerror}") from error


def coordinator_from(config: JobConfig, node: Node) -> Address:
    return Address(node.coordinator if node.rank else coordinator_address(config.job), config.job, config.token)


def worker_environment(config: JobConfig, processes: int, rank: int, port: int, node: Node = ALONE) -> dict[str, str]:
    address = coordinator_from(config, node)
    local = rank - node.rank * processes
    world = {"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": config.workers, "LOCAL_WORLD_SIZE": processes}
    world |= {"ROLE_RANK": rank, "ROLE_WORLD_SIZE": config.workers, "GROUP_WORLD_SIZE": node.count}
    world |= {"TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0}
    place = {"GROUP_RANK": node.rank, "MASTER_ADDR": node.host or "127.0.0.1", "MASTER_PORT": port}
    ours = {COORDINATOR: msgspec.json.encode(address).decode()}
    if node.count > 1:
        ours[ADDRESS] = node.address
    usual = {**KEPT_MEMORY, **({"OMP_NUM_THREADS": 1} if processes > 1 else {})}
    unset = {name: value for name, value in usual.items() if name not in os.environ}
    named = {"TORCHELASTIC_RUN_ID": config.job, **world, **place, **ours, **unset}
    return {key: str(value) for key, value in named.items()}


class ProcessWatch:
    """Waits for a job's processes on this host, says who fails, and ends them all on an interrupt.

    Args:
        address: of the coordinator.
        coordinator: its process, if it is on this host.
        workers: by rank.
        patience_s: how long the coordinator may go on after the last of them; None is for ever, for those of other
            hosts.
    """

    def __init__(
        self,
        address: Address,
        coordinator: "subprocess.Popen[bytes] | None",
        workers: "dict[int, subprocess.Popen[bytes]]",
        patience_s: float | None,
    ) -> None:
        self._address = address
        self._coordinator = coordinator
        self._workers = workers
        self._patience_s = patience_s
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._interrupt)

    def wait(self) -> dict[int, int]:
        """Exit codes by rank; negative for a signal."""
        codes: dict[int, int] = {}
        ranks = {process.pid: rank for rank, process in self._workers.items()}
        while len(codes) < len(self._workers):
            pid, status = os.wait()
            if pid in ranks:
                rank, code = ranks[pid], os.waitstatus_to_exitcode(status)
                codes[rank] = self._workers[rank].returncode = code
                self._tell(rank, code, len(self._workers) - len(codes))
                self._excuse(rank)
            elif self._coordinator is not None and pid == self._coordinator.pid:
                self._coordinator.returncode = os.waitstatus_to_exitcode(status)
        if self._coordinator is not None:
            end(self._coordinator, self._patience_s)
        return codes

    def _excuse(self, rank: int) -> None:
        """Nobody need wait for a worker that has ended, in case it never joined the job."""
        if self._coordinator is None or self._coordinator.returncode is None:
            with contextlib.suppress(PolyrhythmError):  # the coordinator may be about to end
                steer.absent(self._address, rank)

    def _tell(self, rank: int, code: int, left: int) -> None:
        if code and code != BROKEN:  # of which the coordinator has said why
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
            print(f"polyrhythm: rank {rank} {how}; {left} workers go on", file=sys.stderr)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        processes = [*self._workers.values(), *([self._coordinator] if self._coordinator else [])]
        for process in processes:
            process.terminate()
        for process in processes:
            end(process, GRACE_S)
        raise SystemExit(128 + number)


def end(process: "subprocess.Popen[bytes]", patience_s: float | None) -> None:
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
