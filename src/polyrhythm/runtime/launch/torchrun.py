"""Start a job's workers on this host, and its coordinator on the first, under the names and variables of torchrun.

Unlike torchrun, a worker that dies does not end the job: the coordinator tells the others, and they finish it.
"""

import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import msgspec

from polyrhythm.errors import BROKEN, REFUSED, PolyrhythmError, UnreachableError, UsageError
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.launch.environments import become_worker, is_placed
from polyrhythm.runtime.launch.forked import ADAPTED, FORKED, RunningProcess, WorkerFork, can_fork, end, usual
from polyrhythm.runtime.launch.gathering import HOSTS, LastCall
from polyrhythm.runtime.launch.nodes import ALONE, Node, check_room, read_node, read_processes
from polyrhythm.runtime.launch.preemption import LEFT
from polyrhythm.runtime.launch.rendezvous import COORDINATOR, SAID, CoordinatorStart, store_port, wait_for_coordinator
from polyrhythm.runtime.launch.restarts import COUNT, MOST, Restarts, joined_file
from polyrhythm.runtime.launch.run_flags import flag_of, from_call, make_parser, split_at_script
from polyrhythm.runtime.launch.secure import take_up_tls
from polyrhythm.runtime.launch.watch import check_watch, start_watch, with_defaults
from polyrhythm.runtime.wire.config_sources import VARIABLES, told_early
from polyrhythm.runtime.wire.connection import ADDRESS
from polyrhythm.runtime.wire.credentials import make_token
from polyrhythm.runtime.wire.job_config import TYPES, JobConfig, check_job_name, coordinator_address, make_config
from polyrhythm.runtime.wire.parent_death import dies_with_us
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.runtime.wire.tls.cover import UNCOVERED, covered
from polyrhythm.training.divergence import DIVERGED

PATIENCE_S = 7 * 86400.0
"""How long the coordinator waits for the first worker: a script may load data for hours, and the launcher sees who
dies.
"""

LAST_S = 5.0
"""How long the coordinator, and the process that follows the job, may take to end after the last worker."""

UNSEEN = "page, metrics and event files come with workers that polyrhythm run starts; here use polyrhythm top"
"""Said where torchrun, Slurm or an operator has started the workers, so that there is no launcher of ours."""

BUSY = 3
"""So many times the silence of a worker that hangs is one of a coordinator that is only busy, when all is over here."""


class LaunchOrder(NamedTuple):
    """What to start; `overruled` has a line for each setting about which two of its places differ."""

    config: JobConfig
    command: tuple[str, ...]
    processes: int
    node: Node = ALONE
    overruled: tuple[str, ...] = ()

    def check_script(self) -> None:
        """Whether the script is here.

        Raises:
            UsageError: if it is not.
        """
        config = self.config
        script = self.command[0 if config.no_python else len(ADAPTED)]
        if not (config.no_python or config.module or Path(script).exists()):
            raise UsageError(f"cannot find the script {script}")

    @property
    def forks(self) -> bool:
        """Whether the workers are forked from one process."""
        config = self.config
        return self.processes > 1 and config.start_method != "spawn" and not config.no_python and can_fork()

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
    check_room(processes, config.shards)
    take_up_tls(config, node)
    if config.start_method in FORKED and (config.no_python or not can_fork()):
        why = "a program that is no Python" if config.no_python else "a host with a GPU, or without Linux,"
        raise UsageError(f"{config.label('start_method')} {config.start_method}: {why} cannot be forked; leave it out")
    python = [] if config.no_python else [*ADAPTED, *(["-m"] if config.module else [])]
    placed = msgspec.structs.replace(
        config,
        job=config.job or (check_job_name(config.rdzv_id, "--rdzv-id") if node.count > 1 else uuid.uuid4().hex[:8]),
        token=node.token or make_token(),
        listen=node.listen,
        workers=processes * node.count,
    )
    return LaunchOrder(placed, (*python, *script), processes, node, overruled)


def launch(arguments: Sequence[str], fork: WorkerFork | None = None) -> int:
    """Run a job to its end; its exit status. Workers are forked from `fork`, if it has been begun and they can be.

    0; 3 if it diverged, 2 if its script or a setting was refused, or 1 if a worker failed by itself or none finished.

    In a process that torchrun, Slurm or an operator has started as a worker, go on as that worker.
    """
    plan = read_command(arguments)
    plan.check_script()
    if is_placed([flag_of(name) for name, where in plan.config.given.items() if where != VARIABLES[name]], os.environ):
        become_worker(plan.config, plan.command, (*plan.overruled, *([UNSEEN] if plan.config.watched else [])))
    shown = with_defaults(plan.config, os.environ, sys.stderr.isatty())
    plan = plan._replace(config=shown)
    if shown.watched:
        check_watch(shown)
    # In memory, so that nothing is left over however this process ends.
    with store_port(plan.node) as port, open(os.memfd_create("polyrhythm-said"), "rb") as said, joined_file():
        os.environ[SAID] = f"/proc/{os.getpid()}/fd/{said.fileno()}"
        codes = run_workers(plan, port, fork)
    return job_status(list(codes.values()))


def job_status(codes: Sequence[int]) -> int:
    """The job's exit status, from those of its workers on this host.

    >>> job_status([0, -9]), job_status([0, 143]), job_status([0, 1]), job_status([-9, 143]), job_status([143, 143])
    (0, 0, 1, 1, 143)
    """
    if DIVERGED in codes:
        return DIVERGED
    if REFUSED in codes:
        return REFUSED
    if set(codes) == {LEFT}:
        return LEFT
    return 1 if any(code > 0 and code != LEFT for code in codes) or all(codes) else 0


def run_workers(plan: LaunchOrder, port: int, fork: WorkerFork | None) -> dict[int, int]:
    """Start the workers of this host, and the coordinator if it is the first, and wait for them; exit codes by rank."""
    config = msgspec.structs.replace(plan.config, patience_s=PATIENCE_S)
    if fork is not None and not plan.forks:
        fork.close()
    fork = (fork or WorkerFork(plan.command[len(ADAPTED) :], os.environ)) if plan.forks else None
    start = None if plan.node.rank else CoordinatorStart(config, bound=True)
    coordinator = start.start() if start is not None else None
    watch = None if plan.node.rank else start_watch(config)
    announce(plan)
    say(watch.lines if watch else ())
    if coordinator is None:
        wait_for_coordinator(plan.coordinator.coordinator)
    watcher = watch.process if watch else None
    if plan.node.changing and not plan.node.rank:
        LastCall(plan.coordinator, plan.node, plan.processes, say).start()
    workers = {rank: start_worker(plan, rank, port, fork) for rank in plan.ranks}
    if fork is not None and not config.max_restarts:
        fork.close()
    limits = config.hang_after, config.grace
    restarts = Restarts(config.max_restarts, lambda rank, count: start_worker(plan, rank, port, fork, count))
    watched = ProcessWatch(
        plan.coordinator, coordinator, workers, *limits, plan.node.count > 1, watcher, restarts, start
    )
    return watched.wait()


def announce(plan: LaunchOrder) -> None:
    config, node = plan.config, plan.node
    place = f", host {node.rank} of {node.changing or node.count}" if node.count > 1 else ""
    at = f" --at {node.coordinator}" if node.rank else ""
    policy = config.policy if "policy" in config.given else f"{config.policy}, unless the script names another"
    started = f"job {config.job}, policy {policy}, {config.workers} workers{place}"
    say([f"{started}; to switch: polyrhythm ctl {config.job}{at} switch asp"])
    if covered():
        say([UNCOVERED])
    if not node.rank:
        say(plan.overruled)


def say(lines: Sequence[str]) -> None:
    """A line each on stderr, if it can be written: a full disk does not end a job."""
    with contextlib.suppress(OSError):
        for line in lines:
            print(f"polyrhythm: {line}", file=sys.stderr, flush=True)


def start_worker(
    plan: LaunchOrder, rank: int, port: int, fork: WorkerFork | None = None, restarts: int = 0
) -> RunningProcess:
    environment = {**os.environ, **worker_environment(plan.config, plan.processes, rank, port, plan.node)}
    environment[COUNT] = str(restarts)
    if fork is not None and (forked := fork.start(plan.command[len(ADAPTED) :], environment)):
        return forked
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
    world |= {COUNT: 0, MOST: config.max_restarts}
    place = {"GROUP_RANK": node.rank, "MASTER_ADDR": node.host or "127.0.0.1", "MASTER_PORT": port}
    ours = {COORDINATOR: msgspec.json.encode(address).decode(), **told_early(config)}
    if node.count > 1:
        ours[ADDRESS] = node.address
    if node.changing:
        ours[HOSTS] = node.changing
    named = {"TORCHELASTIC_RUN_ID": config.job, **world, **place, **ours, **usual(processes, os.environ)}
    return {key: str(value) for key, value in named.items()}


class ProcessWatch:
    """Waits for a job's processes on this host, says who fails, and ends them on SIGTERM or Ctrl-C: first the workers,
    who may still need the servers for a checkpoint. A second signal ends all at once.

    Args:
        address: of the coordinator.
        coordinator: its process, if it is on this host.
        workers: by rank.
        hang_after: seconds of silence after which the coordinator is given up.
        grace_s: how long the workers may take after a signal.
        elsewhere: whether it has workers on other hosts, for which it goes on after the last of these.
        watcher: the process that follows the job, if there is one; it ends by itself after the job.
        restarts: how workers that have died are started again; none: they are not.
        start: of the coordinator, and of another one if it is killed.
    """

    def __init__(
        self,
        address: Address,
        coordinator: "subprocess.Popen[bytes] | None",
        workers: dict[int, RunningProcess],
        hang_after: float,
        grace_s: float,
        elsewhere: bool = False,
        watcher: "subprocess.Popen[bytes] | None" = None,
        restarts: Restarts | None = None,
        start: CoordinatorStart | None = None,
    ) -> None:
        self._start = start
        self._restarts = restarts or Restarts(0, lambda rank, _: workers[rank])
        self._address = address
        self._coordinator = coordinator
        self._workers = workers
        self._watcher = watcher
        self._hang_after, self._grace_s, self._elsewhere = hang_after, grace_s, elsewhere
        self._silence, self._ending, self._late = "", False, set[int]()
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
                self._workers[rank].returncode = code
                if self._start_again(rank, code, len(self._workers) - len(codes) - 1):
                    ranks[self._workers[rank].pid] = rank
                    continue
                codes[rank] = self._restarts.first_code(rank, code)
                self._tell(rank, code, len(self._workers) - len(codes))
                self._excuse(rank)
            elif self._coordinator is not None and pid == self._coordinator.pid:
                self._coordinator.returncode = os.waitstatus_to_exitcode(status)
                if not self._follow_coordinator(self._coordinator.returncode):
                    self._close()
                    self._end_latecomers(codes)
        if self._coordinator is not None:
            self._await_others(self._coordinator)
            if end(self._coordinator, LAST_S) and self._silence:
                say([f"{self._silence}; the coordinator is ended"])
        self._close()
        if self._watcher is not None:
            end(self._watcher, LAST_S)
        return codes

    def _follow_coordinator(self, code: int) -> bool:
        """Whether another coordinator takes the place of one that was killed; if not, workers wait for none."""
        start = self._start
        if start is None or code >= 0 or self._ending or (following := start.again()) is None:
            return False
        self._coordinator = following
        say([f"the coordinator {ending(code)}; it is started again ({start.made} of {start.most})"])
        return True

    def _close(self) -> None:
        if self._start is not None:
            self._start.close()

    def _start_again(self, rank: int, code: int, left: int) -> bool:
        """Whether a worker that has died gets a new process, while others hold the job's state."""
        gone = self._coordinator is not None and self._coordinator.returncode is not None
        if self._ending or gone or not (left or self._elsewhere) or not self._restarts.allow(rank, code):
            return False
        self._workers[rank] = self._restarts.again(rank, code)
        say([f"rank {rank} {ending(code)}; it is started again ({self._restarts.made} of {self._restarts.most})"])
        return True

    def _end_latecomers(self, codes: dict[int, int]) -> None:
        """The coordinator has ended in good order: whoever was started again and is still to join comes too late."""
        over = self._coordinator is not None and not self._coordinator.returncode
        self._late = self._restarts.to_join - codes.keys() if over else set()
        for rank in sorted(self._late):
            say([f"rank {rank} was started again, and the job has ended before it joined"])
            self._workers[rank].kill()

    def _await_others(self, coordinator: "subprocess.Popen[bytes]") -> None:
        """Until the workers of other hosts are through, which the coordinator knows as long as it answers."""
        while self._elsewhere and not self._silence and coordinator.returncode is None:
            try:
                coordinator.wait(self._hang_after)
            except subprocess.TimeoutExpired:
                self._ask(lambda: steer.status(self._address, BUSY * self._hang_after))

    def _ask(self, question: Callable[[], object]) -> None:
        """Talk to the coordinator, which may be about to end, until it has once not answered."""
        try:
            question()
        except UnreachableError as error:
            self._silence = str(error)
        except PolyrhythmError:
            pass

    def _excuse(self, rank: int) -> None:
        """Nobody need wait for a worker that has ended, in case it never joined the job."""
        if not self._silence and (self._coordinator is None or self._coordinator.returncode is None):
            self._ask(lambda: steer.absent(self._address, rank, self._hang_after))

    def _tell(self, rank: int, code: int, left: int) -> None:
        if code == LEFT:
            say([f"rank {rank} was asked to end, and has left{going_on(left)}"])
        elif (
            code and code not in (BROKEN, REFUSED) and rank not in self._late
        ):  # of which the coordinator or the worker has said why
            say([f"rank {rank} {ending(code)}{going_on(left)}"])

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        workers = list(self._workers.values())
        others = [process for process in (self._coordinator, self._watcher) if process is not None]
        if self._ending:
            for process in [*workers, *others]:
                process.kill()
            raise SystemExit(128 + number)
        self._ending, deadline = True, time.monotonic() + self._grace_s
        name = signal.Signals(number).name
        say([f"{name}: workers have {self._grace_s:g} s to end; once more ends them at once"])
        for worker in workers:
            worker.terminate()
        for worker in workers:
            end(worker, max(0.0, deadline - time.monotonic()))
        for process in others:
            process.terminate()
        for process in others:
            end(process, LAST_S)
        raise SystemExit(128 + number)


def going_on(left: int) -> str:
    """How many workers of this host are still there.

    >>> going_on(0), going_on(1), going_on(2)
    ('', '; 1 worker goes on', '; 2 workers go on')
    """
    return f"; {left} worker{'s go' if left > 1 else ' goes'} on" if left else ""


def ending(code: int) -> str:
    """How a process has ended.

    >>> ending(-9), ending(1)
    ('was killed by SIGKILL', 'failed with exit code 1')
    """
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
