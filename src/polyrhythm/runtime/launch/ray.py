"""Place a job's hosts on a Ray cluster: each is a Ray task that runs ``polyrhythm run`` for its share of the workers.

Ray chooses the hosts, starts one process on each and ends it; everything between the workers is ours, as on any hosts.
"""

import argparse
import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from polyrhythm.early_end import early_end
from polyrhythm.errors import PolyrhythmError, UnreachableError, UsageError
from polyrhythm.lines import say
from polyrhythm.runtime.launch.counts import read_hosts, read_processes
from polyrhythm.runtime.launch.forked import WorkerFork
from polyrhythm.runtime.launch.nodes import TOKEN
from polyrhythm.runtime.launch.rendezvous import port_of, reserve_port
from polyrhythm.runtime.launch.run_flags import Expanded, expanded, make_parser, split_at_script, without
from polyrhythm.runtime.launch.torchrun import job_status, launch, read_command
from polyrhythm.runtime.wire.credentials import make_token
from polyrhythm.runtime.wire.parent_death import dies_with_us

OURS = ("--on", "--worker-gpus", "--job")
"""Flags that concern the placement or are given anew, so that the hosts are not given them."""

CHOSEN = ("node_rank", "rdzv_endpoint", "rdzv_id", "master_addr", "master_port")
"""Flags of torchrun that say what is found out here."""

PLACED_S = 60.0
"""How long the cluster may take to have room."""

PAIRS = 1000
"""How often two successive ports are looked for: more than a host with some free needs."""


class HostCommand(NamedTuple):
    """What one host runs: arguments of ``polyrhythm run``, where, and the job's secret."""

    arguments: list[str]
    folder: str
    token: str


class RayOrder(NamedTuple):
    """What is to be placed.

    Args:
        flags: of ``polyrhythm run``, without those in `OURS`.
        script: with its own arguments.
        hosts: how many.
        resources: of one host, as Ray names them.
        job: id of the job.
        overruled: a line for each setting about which two places differ.
    """

    flags: list[str]
    script: list[str]
    hosts: int
    resources: dict[str, float]
    job: str
    overruled: tuple[str, ...] = ()

    def arguments(self, rank: int, endpoint: str) -> list[str]:
        place = ["--node-rank", str(rank), "--rdzv-endpoint", endpoint] if self.hosts > 1 else []
        return [*self.flags, "--job", self.job, *place, *self.script]


def launch_anywhere(arguments: Sequence[str], fork: WorkerFork | None = None) -> int:
    """Run a job where ``--on`` says; its exit status as in `polyrhythm.runtime.launch.torchrun.launch`."""
    order = read_order(arguments)
    if order is None:
        return launch(arguments, fork)
    say(*order.overruled)
    return launch_on_ray(order)


def read_order(arguments: Sequence[str]) -> RayOrder | None:
    """What a command line of ``polyrhythm run`` asks for; None if it is not for Ray."""
    parser = make_parser()
    given, script = split_at_script(parser, arguments)
    call = expanded(parser, given)
    options = parser.parse_args([*call.flags, script[0]])
    if options.on != "ray":
        if options.worker_gpus:
            where = call.label("worker_gpus")
            raise UsageError(f"{where} is for --on ray; here every worker sees all GPUs of its host")
        return None
    refuse_beside_ray(call, options, parser)
    least, hosts = read_hosts(options.nnodes, call.label("nnodes"))
    workers = read_processes(options.nproc_per_node, call.label("nproc_per_node"))
    if least != hosts:
        where = f"{call.label('nnodes')} {options.nnodes}"
        raise UsageError(f"{where} with --on ray: Ray places a fixed number of hosts; give one")
    resources = {"CPU": float(workers)} | ({"GPU": options.worker_gpus * workers} if options.worker_gpus else {})
    job = options.job or uuid.uuid4().hex[:8]
    return RayOrder(without(call.flags, OURS), script, hosts, resources, job, call.overruled)


def refuse_beside_ray(call: Expanded, options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    for name in CHOSEN:
        if getattr(options, name) != parser.get_default(name):
            raise UsageError(f"{call.label(name)} is found out with --on ray; leave it out")
    if options.group_size > 1:
        where = f"{call.label('group_size')} {options.group_size}"
        raise UsageError(f"{where} and --on ray cannot go together yet; leave one of them out")
    if options.worker_gpus < 0:
        raise UsageError(f"{call.label('worker_gpus')} must be at least 0 but got {options.worker_gpus:g}")


def launch_on_ray(order: RayOrder) -> int:
    """Run a job on the Ray cluster that is running; its exit status.

    Raises:
        UsageError, UnreachableError: without Ray, a cluster, or room on it.
    """
    token = os.environ.get(TOKEN) or make_token()
    os.environ[TOKEN] = token
    read_command(order.arguments(0, "127.0.0.1"))  # whose mistakes are better known before anything is placed
    ray = connected()
    group = reserve(ray, order)
    try:
        return run_on(ray, group, order, token)
    finally:
        ray.util.remove_placement_group(group)


def connected() -> Any:
    """The module of Ray, connected to the cluster of ``RAY_ADDRESS`` or to the one of this host.

    Raises:
        UnreachableError: if there is no cluster.
    """
    ray = ray_part("ray")
    ray_part("ray.util")
    if not ray.is_initialized():
        try:
            with early_end.kept():  # Ray ends a driver on SIGTERM by itself, without a word of what it leaves behind
                ray.init(address=os.environ.get("RAY_ADDRESS", "auto"), log_to_driver=True)
        except ConnectionError:
            raise UnreachableError(
                "--on ray found no Ray cluster; start one with ray start --head, or name it in RAY_ADDRESS"
            ) from None
    return ray


def ray_part(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError:
        raise UsageError("--on ray needs Ray; install it with: pip install 'polyrhythm[ray]'") from None


def reserve(ray: Any, order: RayOrder) -> Any:
    """Room for all hosts of the job, on as many hosts of the cluster as there are."""
    group = ray.util.placement_group([order.resources] * order.hosts, strategy="SPREAD")
    if not group.wait(PLACED_S):
        ray.util.remove_placement_group(group)
        wanted = ", ".join(f"{count:g} {name}" for name, count in order.resources.items())
        raise UsageError(
            f"the Ray cluster has no room for {order.hosts} times {wanted} within {PLACED_S:g} s; "
            "lower --nnodes or --nproc-per-node, or add hosts"
        )
    return group


def run_on(ray: Any, group: Any, order: RayOrder, token: str) -> int:
    def task(function: Any, rank: int, resources: dict[str, float]) -> Any:
        place = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(group, rank)
        options = {"num_cpus": resources["CPU"], "num_gpus": resources.get("GPU", 0), "scheduling_strategy": place}
        return ray.remote(function).options(**options, **({} if isinstance(function, type) else {"max_retries": 0}))

    endpoint = task(Endpoint, 0, {"CPU": 0.0}).remote()
    host, port = ray.get(endpoint.address.remote())
    shares = [
        HostCommand(order.arguments(rank, f"{host}:{port}"), str(Path.cwd()), token) for rank in range(order.hosts)
    ]
    running = [task(serve, rank, order.resources).remote(share) for rank, share in enumerate(shares)]
    try:
        codes = ray.get(running)
    except BaseException:
        for reference in running:
            ray.cancel(reference, force=True)
        raise
    return job_status([abs(int(code)) for code in codes])


class Endpoint:
    """On the first host: how the others reach it, on a port that is kept, like the next, while this actor lives."""

    def __init__(self) -> None:
        self._kept = reserve_pair()

    def address(self) -> tuple[str, int]:
        ray = ray_part("ray")
        return str(ray.util.get_node_ip_address()), port_of(self._kept[0])


def reserve_pair() -> tuple[socket.socket, socket.socket]:
    """Two successive ports: of the coordinator, and of torch's own store.

    Raises:
        UnreachableError: if the host has none, as far as a number of tries tells.
    """
    for _ in range(PAIRS):
        first = reserve_port()
        try:
            return first, reserve_port(port_of(first) + 1)
        except (PolyrhythmError, OverflowError):
            first.close()
    raise UnreachableError(
        f"the first host has no two successive ports that are free, of {PAIRS} tried; widen its "
        "net.ipv4.ip_local_port_range, or end what holds its ports"
    )


def serve(share: HostCommand) -> int:
    """On each host: start its workers, and end with them. Its output goes to the driver by way of Ray."""
    ray = ray_part("ray")
    shipped = ray.get_runtime_context().runtime_env.get("working_dir")
    folder = str(Path.cwd()) if shipped or not Path(share.folder).is_dir() else share.folder
    command = [sys.executable, "-m", "polyrhythm", "run", *share.arguments]
    environment = {**os.environ, TOKEN: share.token}
    return subprocess.Popen(command, cwd=folder, env=environment, preexec_fn=dies_with_us(signal.SIGTERM)).wait()
