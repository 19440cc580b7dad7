"""Start a job's workers on this host, and its coordinator on the first, under the names and variables of torchrun.

Unlike torchrun, a worker that dies does not end the job: the coordinator tells the others, and they finish it.
"""

import argparse
import contextlib
import math
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Sequence
from types import FrameType
from typing import NamedTuple, get_args

import msgspec
from torch.distributed.run import get_args_parser

from polyrhythm.errors import BROKEN, PolyrhythmError
from polyrhythm.runtime.coordinator.job import runnable
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.launch.environments import become_worker, is_placed
from polyrhythm.runtime.launch.nodes import ADDRESS, ALONE, Node, read_node
from polyrhythm.runtime.launch.rendezvous import (
    COORDINATOR,
    die_with_parent,
    free_port,
    start_coordinator,
    wait_for_coordinator,
)
from polyrhythm.runtime.wire.job_config import Averaging, JobConfig, coordinator_address
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.training.compensation import parse_compensation
from polyrhythm.training.compression import parse_compression
from polyrhythm.training.divergence import DIVERGED, OnDivergence

LOGS = "what workers print comes out here as it is"
REFUSED = {
    **dict.fromkeys(("rdzv_conf", "max_restarts"), "a job goes on without workers that die, and restarts none"),
    **dict.fromkeys(("log_dir", "logs_specs", "redirects", "tee", "local_ranks_filter"), LOGS),
    **dict.fromkeys(("duplicate_stdout_filters", "duplicate_stderr_filters"), LOGS),
    **dict.fromkeys(("numa_binding", "virtual_local_rank"), "workers are started where they are, with their own ranks"),
    "local_addr": "a host's address is the one from which it reaches the first",
    "run_path": "a script is run by its own path",
}
"""Flags of torchrun that would change something and do nothing here, and why; only their defaults are accepted."""

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
    """What to start."""

    settings: JobConfig
    command: tuple[str, ...]
    processes: int
    node: Node = ALONE

    @property
    def ranks(self) -> range:
        """Of the workers on this host."""
        return range(self.node.rank * self.processes, (self.node.rank + 1) * self.processes)

    @property
    def coordinator(self) -> Address:
        """How workers on this host reach the coordinator."""
        return coordinator_from(self.settings, self.node)


def make_parser() -> argparse.ArgumentParser:
    """torchrun's parser with our flags in front."""
    parser = get_args_parser()
    parser.prog = "polyrhythm run"
    parser.description = "Start the workers of a job on this host under a synchronization policy."
    ours = parser.add_argument_group("polyrhythm")
    ours.add_argument("--policy", default="bsp", metavar="SPEC", help="first policy, as in ssp:3")
    ours.add_argument("--on", choices=("here", "ray"), default="here", help="where to start the workers")
    ours.add_argument("--worker-gpus", type=float, default=0.0, metavar="N", help="GPUs of each worker, with --on ray")
    ours.add_argument("--job", default="", metavar="NAME", help="id of the job, for polyrhythm ctl")
    ours.add_argument("--epochs", type=int, default=1, help="epochs that the script makes, for policies with shares")
    ours.add_argument(
        "--lr-convention", choices=("linear", "same"), default="linear", help="see the guide to real jobs"
    )
    ours.add_argument("--compensation", default="none", metavar="SPEC", help="what is done about staleness")
    ours.add_argument("--compress", default="none", metavar="SPEC", help="what is sent, as in int8 or topk:0.01")
    ours.add_argument("--full-duplex", action="store_true", help="pull while pushing, between hosts; see the guide")
    ours.add_argument(
        "--averaging", choices=get_args(Averaging), default="ring", help="where averages of replicas are summed up"
    )
    ours.add_argument(
        "--averaged-state", choices=("keep", "average", "reset"), default="keep", help="states of averaged replicas"
    )
    ours.add_argument("--delta-rate", type=float, default=1.0, metavar="R", help="rate of deltas without an optimizer")
    ours.add_argument(
        "--on-divergence", choices=get_args(OnDivergence), default="ignore", help="when the loss is nan or explodes"
    )
    ours.add_argument("--shards", type=int, default=1, metavar="N", help="parameter servers")
    ours.add_argument("--hang-after", type=float, default=10.0, metavar="S", help="silence of a worker that is a hang")
    ours.add_argument("--trace", metavar="DIR", help="keep a trace of every phase")
    return parser


def read_command(arguments: Sequence[str]) -> LaunchOrder:
    """What a command line asks for.

    Raises:
        PolyrhythmError: for a flag that has no meaning here, or a value that cannot be.
    """
    parser = make_parser()
    flags, script = split_at_script(parser, arguments)
    options = parser.parse_args([*flags, script[0]])
    for name, reason in REFUSED.items():
        if getattr(options, name) != parser.get_default(name):
            flag, value = "--" + name.replace("_", "-"), getattr(options, name)
            given = flag if value is True else f"{flag} {value}"
            raise PolyrhythmError(f"{given} has no meaning here: {reason}; leave it out")
    processes, node = read_processes(options.nproc_per_node), read_node(options)
    python = [] if options.no_python else [sys.executable, "-u", "-m", ADAPT, *(["-m"] if options.module else [])]
    return LaunchOrder(read_settings(options, processes * node.count, node), (*python, *script), processes, node)


def read_settings(options: argparse.Namespace, workers: int, node: Node) -> JobConfig:
    """The coordinator's settings; everything in them is checked before a process starts."""
    if options.shards < 1 or options.epochs < 1 or options.hang_after <= 0:
        raise PolyrhythmError("--shards and --epochs must be at least 1, and --hang-after more than 0 seconds")
    if not 0 < options.delta_rate < math.inf:
        raise PolyrhythmError(f"--delta-rate must be positive and finite but got {options.delta_rate}")
    compensation = parse_compensation(options.compensation)
    if options.full_duplex and compensation.needs_backup:
        raise PolyrhythmError(
            f"--full-duplex and --compensation {options.compensation} exclude each other: it compares a gradient's "
            "parameters with the newest, and its worker reads the next ones before the gradient is there; use one"
        )
    parse_compression(options.compress)
    return JobConfig(
        job=options.job or (options.rdzv_id if node.count > 1 else uuid.uuid4().hex[:8]),
        token=node.token,
        listen=node.listen,
        policy=runnable(options.policy),
        workers=workers,
        epochs=options.epochs,
        lr_convention=options.lr_convention,
        compensation=options.compensation,
        full_duplex=options.full_duplex,
        compress=options.compress,
        averaging=options.averaging,
        averaged_state=options.averaged_state,
        delta_rate=options.delta_rate,
        on_divergence=options.on_divergence,
        shards=options.shards,
        hang_s=options.hang_after,
        heartbeat_s=min(0.5, options.hang_after / 4),
        trace=options.trace,
        patience_s=PATIENCE_S,
    )


def read_processes(value: str) -> int:
    """Workers on this host: a number, or what torchrun's words mean here."""
    if value in ("cpu", "auto", "gpu"):
        import torch

        gpus = torch.cuda.device_count()
        return gpus if value == "gpu" or (value == "auto" and gpus) else os.cpu_count() or 1
    if not value.isdecimal() or int(value) < 1:
        raise PolyrhythmError(f"--nproc-per-node must be a number of at least 1, auto, cpu or gpu but got {value!r}")
    return int(value)


def split_at_script(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our flags, and the script with its own: nothing behind the script is looked at.

    >>> split_at_script(make_parser(), ["--policy", "asp", "--standalone", "train.py", "--n", "5"])
    (['--policy', 'asp', '--standalone'], ['train.py', '--n', '5'])
    """
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if not word.startswith("-"):
            return list(arguments[:position]), list(arguments[position:])
        action = parser._option_string_actions.get(word.replace("_", "-") if word.startswith("--") else word)
        takes_value = action is not None and action.nargs != 0 and "=" not in word
        position += 2 if takes_value else 1
    if {"-h", "--help"} & set(arguments):
        parser.parse_args(["--help"])  # which does not come back
    raise PolyrhythmError("no script given; write polyrhythm run --policy asp train.py")


def launch(arguments: Sequence[str]) -> int:
    """Run a job to its end; its exit status: 0, 3 if it diverged, or 1 if a worker failed by itself or none finished.

    In a process that torchrun, Slurm or an operator has started as a worker, go on as that worker.
    """
    plan = read_command(arguments)
    if is_placed(split_at_script(make_parser(), arguments)[0], os.environ):
        become_worker(plan.settings, plan.command)
    coordinator = None if plan.node.rank else start_coordinator(plan.settings, bound=True)
    announce(plan)
    if coordinator is None:
        wait_for_coordinator(plan.coordinator.coordinator)
    port = free_port() if plan.node.count == 1 else plan.node.port + 1
    workers = {rank: start_worker(plan, rank, port) for rank in plan.ranks}
    codes = ProcessWatch(plan.coordinator, coordinator, workers, GRACE_S if plan.node.count == 1 else None).wait()
    if DIVERGED in codes.values():
        return DIVERGED
    return 1 if any(code > 0 for code in codes.values()) or all(codes.values()) else 0


def announce(plan: LaunchOrder) -> None:
    """Say what starts, and how to steer it."""
    settings, node = plan.settings, plan.node
    place = f", host {node.rank} of {node.count}" if node.count > 1 else ""
    at = f" --at {node.coordinator}" if node.rank else ""
    print(
        f"polyrhythm: job {settings.job}, policy {settings.policy}, {settings.workers} workers{place}; "
        f"to switch: polyrhythm ctl {settings.job}{at} switch asp",
        file=sys.stderr,
    )


def start_worker(plan: LaunchOrder, rank: int, port: int) -> "subprocess.Popen[bytes]":
    """One worker, in the environment that torchrun would give it."""
    environment = {**os.environ, **worker_environment(plan.settings, plan.processes, rank, port, plan.node)}
    try:
        return subprocess.Popen(plan.command, env=environment, preexec_fn=die_with_parent)
    except OSError as error:
        raise PolyrhythmError(f"cannot start {plan.command[0]}: {error.strerror}") from error


def coordinator_from(settings: JobConfig, node: Node) -> Address:
    """How this host reaches the coordinator."""
    return Address(node.coordinator if node.rank else coordinator_address(settings.job), settings.job, settings.token)


def worker_environment(settings: JobConfig, processes: int, rank: int, port: int, node: Node = ALONE) -> dict[str, str]:
    """The variables that torchrun would set for one of so many workers on each host, and ours."""
    address = coordinator_from(settings, node)
    local = rank - node.rank * processes
    world = {"RANK": rank, "LOCAL_RANK": local, "WORLD_SIZE": settings.workers, "LOCAL_WORLD_SIZE": processes}
    world |= {"ROLE_RANK": rank, "ROLE_WORLD_SIZE": settings.workers, "GROUP_WORLD_SIZE": node.count}
    world |= {"TORCHELASTIC_RESTART_COUNT": 0, "TORCHELASTIC_MAX_RESTARTS": 0}
    place = {"GROUP_RANK": node.rank, "MASTER_ADDR": node.host or "127.0.0.1", "MASTER_PORT": port}
    ours = {COORDINATOR: msgspec.json.encode(address).decode(), "POLYRHYTHM_POLICY": settings.policy}
    if node.count > 1:
        ours[ADDRESS] = node.address
    usual = {**KEPT_MEMORY, **({"OMP_NUM_THREADS": 1} if processes > 1 else {})}
    unset = {name: value for name, value in usual.items() if name not in os.environ}
    named = {"TORCHELASTIC_RUN_ID": settings.job, **world, **place, **ours, **unset}
    return {key: str(value) for key, value in named.items()}


class ProcessWatch:
    """Waits for a job's processes on this host, says who fails, and ends them all on an interrupt.

    Args:
        address: of the coordinator.
        coordinator: its process, if it is on this host.
        workers: by rank.
        patience_s: how long the coordinator may go on behind the last of them; None is for ever, for those of other
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
    """Let a process end by itself for a while, then end it."""
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
