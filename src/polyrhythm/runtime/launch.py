"""Start the workers of a job and its hub on this host, under the names and variables of torchrun.

Unlike torchrun, a worker that dies does not end the job: the hub tells the others, and they finish it.
"""

import argparse
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
from torch.distributed.run import get_args_parser

from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime import steer
from polyrhythm.runtime.control import Address
from polyrhythm.runtime.hub_settings import HubSettings, hub_address
from polyrhythm.runtime.job import runnable
from polyrhythm.runtime.rendezvous import HUB, die_with_parent, free_port, start_hub
from polyrhythm.training.compensation import parse_compensation

ELSEWHERE = ("nnodes", "node_rank", "rdzv_backend", "rdzv_endpoint", "rdzv_conf", "master_addr", "max_restarts")
"""Flags of torchrun that say something about other hosts or restarts; only their defaults are accepted here."""

GRACE_S = 5.0
"""How long workers may take to end after an interrupt."""


class Launch(NamedTuple):
    """What to start."""

    settings: HubSettings
    command: tuple[str, ...]
    processes: int


def make_parser() -> argparse.ArgumentParser:
    """torchrun's parser with our flags in front."""
    parser = get_args_parser()
    parser.prog = "polyrhythm run"
    parser.description = "Start the workers of a job on this host under a synchronization policy."
    ours = parser.add_argument_group("polyrhythm")
    ours.add_argument("--policy", default="bsp", metavar="SPEC", help="first policy, as in ssp:3")
    ours.add_argument("--job", default="", metavar="NAME", help="id of the job, for polyrhythm ctl")
    ours.add_argument("--epochs", type=int, default=1, help="epochs that the script makes, for policies with shares")
    ours.add_argument(
        "--lr-convention", choices=("linear", "same"), default="linear", help="see the guide to real jobs"
    )
    ours.add_argument("--compensation", default="none", metavar="SPEC", help="what is done about staleness")
    ours.add_argument("--shards", type=int, default=1, metavar="N", help="parameter servers")
    ours.add_argument("--hang-after", type=float, default=10.0, metavar="S", help="silence of a worker that is a hang")
    ours.add_argument("--trace", metavar="DIR", help="keep a trace of every phase")
    return parser


def read_command(arguments: Sequence[str]) -> Launch:
    """What a command line asks for.

    Raises:
        PolyrhythmError: for a flag that is not for one host, or a value that cannot be.
    """
    parser = make_parser()
    flags, script = split_at_script(parser, arguments)
    options = parser.parse_args([*flags, script[0]])
    for name in ELSEWHERE:
        if getattr(options, name) != parser.get_default(name) and str(getattr(options, name)) not in ("1", "1:1", "0"):
            flag = "--" + name.replace("_", "-")
            raise PolyrhythmError(
                f"{flag} {getattr(options, name)} is for several hosts or restarts; leave it out here"
            )
    processes = read_processes(options.nproc_per_node)
    python = [] if options.no_python else [sys.executable, "-u", *(["-m"] if options.module else [])]
    return Launch(read_settings(options, processes), (*python, *script), processes)


def read_settings(options: argparse.Namespace, workers: int) -> HubSettings:
    """The hub's settings; everything in them is checked before a process starts."""
    if options.shards < 1 or options.epochs < 1 or options.hang_after <= 0:
        raise PolyrhythmError("--shards and --epochs must be at least 1, and --hang-after more than 0 seconds")
    parse_compensation(options.compensation)
    return HubSettings(
        job=options.job or uuid.uuid4().hex[:8],
        policy=runnable(options.policy),
        workers=workers,
        epochs=options.epochs,
        lr_convention=options.lr_convention,
        compensation=options.compensation,
        shards=options.shards,
        hang_s=options.hang_after,
        pulse_s=min(0.5, options.hang_after / 4),
        trace=options.trace,
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
    """Run a job to its end; its exit status: 0, or 1 if a worker failed by itself or none finished."""
    plan = read_command(arguments)
    settings = plan.settings
    hub = start_hub(settings, bound=True)
    print(
        f"polyrhythm: job {settings.job}, policy {settings.policy}, {plan.processes} workers; "
        f"to switch: polyrhythm ctl {settings.job} switch asp",
        file=sys.stderr,
    )
    port = free_port()
    workers = {rank: start_worker(plan, rank, port) for rank in range(plan.processes)}
    codes = Watch(settings, hub, workers).wait()
    return 1 if any(code > 0 for code in codes.values()) or all(codes.values()) else 0


def start_worker(plan: Launch, rank: int, port: int) -> "subprocess.Popen[bytes]":
    """One worker, in the environment that torchrun would give it."""
    environment = {**os.environ, **worker_environment(plan.settings, plan.processes, rank, port)}
    try:
        return subprocess.Popen(plan.command, env=environment, preexec_fn=die_with_parent)
    except OSError as error:
        raise PolyrhythmError(f"cannot start {plan.command[0]}: {error.strerror}") from error


def worker_environment(settings: HubSettings, processes: int, rank: int, port: int) -> dict[str, str]:
    """The variables that torchrun would set for one worker of so many, and ours."""
    address = Address(hub_address(settings.job), settings.job, settings.token)
    world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes}
    place = {"GROUP_RANK": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": settings.job}
    ours = {HUB: msgspec.json.encode(address).decode(), "POLYRHYTHM_POLICY": settings.policy}
    threads = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")} if processes > 1 else {}
    return {key: str(value) for key, value in {**world, **place, **ours, **threads}.items()}


class Watch:
    """Waits for the processes of a job, says who fails, and ends them all on an interrupt."""

    def __init__(
        self,
        settings: HubSettings,
        hub: "subprocess.Popen[bytes]",
        workers: "dict[int, subprocess.Popen[bytes]]",
    ) -> None:
        self._settings = settings
        self._hub = hub
        self._workers = workers
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
            elif pid == self._hub.pid:
                self._hub.returncode = os.waitstatus_to_exitcode(status)
        end(self._hub, GRACE_S)
        return codes

    def _excuse(self, rank: int) -> None:
        """Nobody need wait for a worker that has ended, in case it never joined the job."""
        if self._hub.returncode is None:
            with contextlib.suppress(PolyrhythmError):  # the hub may be about to end
                steer.absent(self._settings.job, rank, self._settings.token)

    def _tell(self, rank: int, code: int, left: int) -> None:
        if code:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
            print(f"polyrhythm: rank {rank} {how}; {left} workers go on", file=sys.stderr)

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        for process in (*self._workers.values(), self._hub):
            process.terminate()
        for process in (*self._workers.values(), self._hub):
            end(process, GRACE_S)
        raise SystemExit(128 + number)


def end(process: "subprocess.Popen[bytes]", patience_s: float) -> None:
    """Let a process end by itself for a while, then end it."""
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
