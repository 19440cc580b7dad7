"""Start a job's workers on this host, and its coordinator on the first, under the names and variables of torchrun.

Unlike torchrun, a worker that dies does not end the job: the coordinator tells the others, and they finish it.
"""

import os
import signal
import subprocess
import sys
import uuid
import warnings
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import msgspec

from polyrhythm.errors import REFUSED, PolicyError, UsageError
from polyrhythm.lines import SAID, say
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.launch.counts import check_open_files, check_room, read_hosts, read_processes
from polyrhythm.runtime.launch.environments import become_worker, is_placed
from polyrhythm.runtime.launch.forked import ADAPTED, FORKED, RunningProcess, WorkerFork, can_fork, usual
from polyrhythm.runtime.launch.gathering import HOSTS, LastCall, state_of_first
from polyrhythm.runtime.launch.groups import check_groups, group_environment, store_ports
from polyrhythm.runtime.launch.job_file import idle_terms
from polyrhythm.runtime.launch.nodes import ALONE, Node, own_interface, read_node
from polyrhythm.runtime.launch.preemption import ENDING, LEFT, file_in_memory
from polyrhythm.runtime.launch.process_watch import ProcessWatch
from polyrhythm.runtime.launch.rendezvous import (
    COORDINATOR,
    RUN,
    CoordinatorStart,
    answers,
    wait_for_coordinator,
)
from polyrhythm.runtime.launch.restarts import COUNT, JOINED, MOST, STATUSES, Restarts
from polyrhythm.runtime.launch.run_flags import flag_of, from_call, make_parser, split_at_script
from polyrhythm.runtime.launch.watch import Watch, check_outputs, check_watch, start_watch, with_defaults
from polyrhythm.runtime.wire.config_sources import VARIABLES, told_early
from polyrhythm.runtime.wire.connection import ADDRESS
from polyrhythm.runtime.wire.credentials import make_token
from polyrhythm.runtime.wire.job_config import NO_ID, TYPES, JobConfig, coordinator_address, make_config
from polyrhythm.runtime.wire.parent_death import aside, dies_with_us
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.runtime.wire.recovery.removed import REMOVED
from polyrhythm.runtime.wire.setting_values import check_job_name
from polyrhythm.runtime.wire.tls.cover import UNCOVERED, check_cover, covered, take_up
from polyrhythm.runtime.wire.tls.files import TlsFiles, check_files
from polyrhythm.telemetry.folders import remove_left
from polyrhythm.training.divergence import DIVERGED

PATIENCE_S = 7 * 86400.0
"""How long the coordinator waits for the first worker: a script may load data for hours, and the launcher sees who
dies.
"""

TLS_SETTINGS = ("tls_cert", "tls_key", "tls_ca")
UNSEEN = "page, metrics and event files come with workers that polyrhythm run starts; here use polyrhythm top"
"""Said where torchrun, Slurm or an operator has started the workers, so that there is no launcher of ours."""


class LaunchOrder(NamedTuple):
    """What to start; `overruled` has a line for each setting about which two of its places differ."""

    config: JobConfig
    command: tuple[str, ...]
    processes: int
    node: Node = ALONE
    overruled: tuple[str, ...] = ()

    def check_script(self) -> None:
        """Whether the script is here, and is Python."""
        config = self.config
        script = self.command[0 if config.no_python else len(ADAPTED)]
        if config.no_python:
            return
        if config.module:
            check_package(self.command[len(ADAPTED) + 1])
            return
        if not Path(script).exists():
            raise UsageError(f"cannot find the script {script}")
        if Path(script).is_dir():
            raise UsageError(f"the script {script} is a folder; name a file in it")
        check_syntax(Path(script))

    @property
    def forks(self) -> bool:
        config = self.config
        return self.processes > 1 and config.start_method != "spawn" and not config.no_python and can_fork()

    @property
    def ranks(self) -> range:
        return range(self.node.rank * self.processes, (self.node.rank + 1) * self.processes)

    @property
    def coordinator(self) -> Address:
        return coordinator_from(self.config, self.node)


def check_package(module: str) -> None:
    """Whether the first part of a module's name is here; for more, that part would have to be imported."""
    first = module.partition(".")[0]
    if Path(module).is_file() and (module.endswith(".py") or os.sep in module):
        name = module.removesuffix(".py").replace(os.sep, ".")
        raise UsageError(f"-m {module} names a file; give the script without -m, or -m {name}")
    if not first or first == "__main__" or not (PathFinder.find_spec(first, [str(Path.cwd())]) or find_spec(first)):
        raise UsageError(f"cannot find the module {module}: {first or 'it'} is neither here nor installed")


def check_syntax(script: Path) -> None:
    """Every worker would fail with the same traceback."""
    if script.suffix != ".py" or not script.is_file():
        return
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(script.read_bytes(), str(script), "exec", dont_inherit=True)
    except OSError as error:
        raise UsageError(f"cannot read the script {script}: {error.strerror}") from None
    except SyntaxError as error:
        place = f"{script}:{error.lineno}" if error.lineno else str(script)
        raise UsageError(f"{place}: {error.msg}") from None
    except (ValueError, MemoryError, RecursionError):  # what the interpreter says of it in a worker is as good
        return


def read_command(arguments: Sequence[str]) -> LaunchOrder:
    """What a command line asks for, with its job file and the environment; all is checked before a process starts."""
    parser = make_parser()
    flags, script = split_at_script(parser, arguments)
    chosen, overruled = from_call(parser, flags, os.environ)
    config = make_config({name: given for name, given in chosen.items() if name in TYPES})
    places = config.label("nproc_per_node"), config.label("shards")
    check_agreement(config, "standalone" in chosen)
    processes, node = read_processes(config.nproc_per_node, places[0]), read_node(config)
    check_room(processes, config.shards, places)
    check_groups(config, processes)
    take_up_tls(config, node)
    if config.start_method in FORKED and (config.no_python or not can_fork()):
        why = "a program that is no Python" if config.no_python else "a host with a GPU, or without Linux,"
        raise UsageError(f"{config.label('start_method')} {config.start_method}: {why} cannot be forked; leave it out")
    python = [] if config.no_python else [*ADAPTED, *(["-m"] if config.module else [])]
    placed = msgspec.structs.replace(
        config,
        job=job_id(config, node.count),
        token=node.token or make_token(),
        listen=node.listen,
        workers=processes * node.count // config.group_size,
        run=uuid.uuid4().hex,
        **({} if config.group_size == 1 else {"max_coordinator_restarts": 0}),
    )
    return LaunchOrder(placed, (*python, *script), processes, node, (*overruled, *idle_terms(chosen)))


def job_id(config: JobConfig, hosts: int) -> str:
    """As it is given; on one host without one, a new id."""
    named = hosts > 1 or config.rdzv_id != NO_ID
    return config.job or (check_job_name(config.rdzv_id, config.label("rdzv_id")) if named else uuid.uuid4().hex[:8])


def check_agreement(config: JobConfig, standalone: bool) -> None:
    """Of two flags that say different things, neither would be the one that is meant."""
    if {"job", "rdzv_id"} <= config.given.keys() and config.job != config.rdzv_id:
        ids = f"{config.label('rdzv_id')} {config.rdzv_id} and {config.label('job')} {config.job}"
        raise UsageError(f"{ids} are two ids of one job; leave out one")
    if read_hosts(config.nnodes, config.label("nnodes"))[1] == 1:
        return
    hosts = f"{config.label('nnodes')} {config.nnodes}"
    if standalone:
        raise UsageError(f"--standalone is for one host, and {hosts} for several; leave out one")


def take_up_tls(config: JobConfig, node: Node) -> None:
    """Let all processes of this host have TLS, if it is asked for."""
    files = TlsFiles(config.tls_cert, config.tls_key, config.tls_ca)
    if node.count > 1 or any(config.given.get(name) not in (None, VARIABLES[name]) for name in TLS_SETTINGS):
        check_files(files, serves=node.count > 1 or bool(files.cert or files.key))
    take_up(files, os.environ, node.count)
    if "policy" not in config.given:
        return
    try:
        check_cover(parse_policy(config.policy))
    except PolicyError as error:  # the policy has broken nothing
        raise UsageError(str(error)) from None


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
    if not plan.node.rank:
        check_open_files(shown.workers)
        check_outputs(shown)
    remove_left()
    ports = store_ports(plan.node, plan.processes, plan.config.group_size)
    with ports as kept, ExitStack() as files:
        files.callback(remove_left)  # those of workers that were killed
        for variable in (SAID, JOINED, STATUSES, ENDING, REMOVED):
            files.enter_context(file_in_memory(variable))
        codes = run_workers(plan, kept, fork)
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


def run_workers(plan: LaunchOrder, ports: Sequence[int], fork: WorkerFork | None) -> dict[int, int]:
    """Start the workers of this host, and the coordinator if it is the first, and wait for them; exit codes by rank."""
    port = dict(zip(plan.ranks, ports, strict=True))
    config = msgspec.structs.replace(plan.config, patience_s=PATIENCE_S)
    if fork is not None and not plan.forks:
        fork.close()
    fork = (fork or WorkerFork(plan.command[len(ADAPTED) :], os.environ)) if plan.forks else None
    start = coordinator_start(plan._replace(config=config), fork)
    coordinator, watch = begin_later_host(plan, start) if plan.node.rank else begin_first_host(plan, start)
    workers = dict[int, RunningProcess]()
    limits = config.hang_after, config.grace
    # Before the launcher handles it, after which a new process would have it as usual.
    unheard = [signal.SIGHUP, *([signal.SIGINT] if signal.getsignal(signal.SIGINT) is signal.SIG_IGN else [])]

    def begin(rank: int, restarts: int = 0) -> RunningProcess:
        return start_worker(plan, rank, port[rank], unheard, fork, restarts)

    restarts = Restarts(config.max_restarts, begin)
    watched = ProcessWatch(
        plan.coordinator,
        coordinator,
        workers,
        *limits,
        plan.node.count > 1,
        watch.process if watch else None,
        restarts,
        start,
        config.group_size,
    )
    for rank in plan.ranks:
        workers[rank] = begin(rank)
    if fork is not None and not config.max_restarts:
        fork.close()
    return watched.wait()


def begin_first_host(plan: LaunchOrder, start: CoordinatorStart | None) -> tuple[RunningProcess | None, Watch | None]:
    """The coordinator, and what shows the job."""
    coordinator = start.start() if start is not None else None
    watch = start_watch(plan.config)
    announce(plan)
    say(*(watch.lines if watch else ()))
    os.environ[RUN] = run_number(plan)
    if plan.node.count > 1:
        LastCall(plan.coordinator, plan.node, plan.processes // plan.config.group_size, say).start()
    return coordinator, watch


def begin_later_host(plan: LaunchOrder, start: CoordinatorStart | None) -> tuple[RunningProcess | None, None]:
    """The standby of the coordinator, once that one is there; of what shows the job the first host has it."""
    announce(plan)
    wait_for_coordinator(plan.coordinator.coordinator, plan.node.standby)
    os.environ[RUN] = run_number(plan)
    return start.start() if start is not None else None, None


def coordinator_start(plan: LaunchOrder, fork: WorkerFork | None) -> CoordinatorStart | None:
    """What starts the coordinator of this host, or its standby; none if it has neither.

    Raises:
        UsageError: if a job of this id is running, here or on its standby, or a port is taken.
    """
    node, config = plan.node, plan.config
    if not node.rank:
        if node.standby and answers(node.standby):
            raise UsageError(
                f"job {config.job} goes on at its standby, {node.standby}; end it before it is started anew"
            )
        return CoordinatorStart(config, bound=True, fork=fork)
    if not node.is_standby:
        return None
    first = Address(node.coordinator, config.job, config.token)
    return CoordinatorStart(msgspec.structs.replace(config, listen=(node.standby,)), True, first, fork)


def run_number(plan: LaunchOrder) -> str:
    """What tells this run from others of its name; the first host has made it, with a job like ours."""
    node, config = plan.node, plan.config
    if not node.rank:
        return config.run
    first = Address(node.coordinator, config.job, config.token, node.standby)
    state = state_of_first(first)
    if state.planned != config.workers:
        raise UsageError(
            f"host 0 has begun a job of {state.planned} workers, and --nnodes and --nproc-per-node of this host make "
            f"{config.workers}; give every host the same"
        )
    if (
        "policy" in config.given
        and state.policy_fixed
        and parse_policy(config.policy).spec not in (state.policy, state.chosen)
    ):
        say(f"policy {state.policy} of the job holds; {config.policy} of {config.given['policy']} is overruled")
    return state.run


def announce(plan: LaunchOrder) -> None:
    config, node = plan.config, plan.node
    place = f", host {node.rank} of {node.changing or node.count}" if node.count > 1 else ""
    at = f" --at {node.coordinator}" if node.rank else ""
    policy = config.policy if "policy" in config.given else f"{config.policy}, unless the script names another"
    groups = f" of {config.group_size} processes" if config.group_size > 1 else ""
    workers = f"{config.workers} worker{'s' if config.workers > 1 else ''}"
    started = f"job {config.job}, policy {policy}, {workers}{groups}{place}"
    other = another_policy(config.policy, config.group_size)
    say(f"{started}; to switch: polyrhythm ctl {config.job}{at} switch {other}")
    if covered():
        say(UNCOVERED)
    if not node.rank:
        say(*plan.overruled)


def another_policy(policy: str, group_size: int) -> str:
    """One that such a job could switch to.

    >>> another_policy("bsp", 1), another_policy("asp", 1), another_policy("local:h=8", 2)
    ('asp', 'bsp', 'bsp')
    """
    other = "asp" if group_size == 1 else "local:8"
    return "bsp" if parse_policy(policy) == parse_policy(other) else other


def start_worker(
    plan: LaunchOrder,
    rank: int,
    port: int,
    unheard: Sequence[int],
    fork: WorkerFork | None = None,
    restarts: int = 0,
) -> RunningProcess:
    """Start one, which does not hear these signals if it is not forked; a fork has what its `WorkerFork` has."""
    environment = {**os.environ, **worker_environment(plan.config, plan.processes, rank, port, plan.node)}
    environment[COUNT] = str(restarts)
    if fork is not None and (forked := fork.start(plan.command[len(ADAPTED) :], environment)):
        return forked
    try:
        return subprocess.Popen(plan.command, env=environment, preexec_fn=aside(dies_with_us(), *unheard))
    except OSError as error:
        raise UsageError(f"cannot start {plan.command[0]}: {error.strerror}") from error


def coordinator_from(config: JobConfig, node: Node) -> Address:
    """Workers of host 0 are lost with it."""
    here = coordinator_address(config.job)
    if not node.rank:
        return Address(here, config.job, config.token)
    return Address(node.coordinator, config.job, config.token, here if node.is_standby else node.standby)


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
    ours |= group_environment(config, rank)
    usually = {**usual(processes, os.environ), **own_interface(node, os.environ)}
    named = {"TORCHELASTIC_RUN_ID": config.job, **world, **place, **ours, **usually}
    return {key: str(value) for key, value in named.items()}
