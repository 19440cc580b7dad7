"""Replica groups (``--group-size``): so many processes of a host, with one model among them, are one worker.

Each group is a torch.distributed world of its own: torchrun's variables say so to its processes, and `GROUP` the rest.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

from polyrhythm.core.placement import runtime_placement
from polyrhythm.errors import UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.launch.nodes import Node
from polyrhythm.runtime.launch.rendezvous import GROUP, port_of, reserve_port, store_port
from polyrhythm.runtime.wire.job_config import JobConfig

NOT_IN_GROUPS = {
    "max_restarts": 0,
    "standby": "",
    "checkpoint": None,
    "compress": "none",
    "averaging": "ring",
    "injection": "none",
    "on_divergence": "ignore",
}
"""Settings that need workers of one process each, at their defaults."""


class GroupPlace(NamedTuple):
    """One process: its `group` of several in the job, and its `place` among the `size` processes of that."""

    group: int
    groups: int
    place: int
    size: int


def place_in_group(environment: Mapping[str, str]) -> GroupPlace | None:
    """Where this process is; None if its worker has no other.

    >>> place_in_group({"POLYRHYTHM_GROUP": "1:3", "RANK": "0", "WORLD_SIZE": "2"})
    GroupPlace(group=1, groups=3, place=0, size=2)
    >>> place_in_group({"RANK": "0", "WORLD_SIZE": "2"})
    """
    if GROUP not in environment:
        return None
    group, _, groups = environment[GROUP].partition(":")
    return GroupPlace(int(group), int(groups), int(environment["RANK"]), int(environment["WORLD_SIZE"]))


def check_groups(config: JobConfig, processes: int) -> None:
    """What groups cannot have yet; `processes` of this host, 0 if nobody has started them as groups.

    Raises:
        UsageError: for a setting beside --group-size that would do nothing, or something else.
    """
    size, where = config.group_size, f"{config.label('group_size')} {config.group_size}"
    if size == 1:
        return
    if not processes:
        raise UsageError(f"{where} is for workers that polyrhythm run starts, and this one runs already; leave it out")
    if processes % size:
        raise UsageError(f"{where} must divide the processes of a host, and --nproc-per-node is {processes}")
    restarts = {"max_coordinator_restarts": 0} if "max_coordinator_restarts" in config.given else {}
    for name, value in (NOT_IN_GROUPS | restarts).items():
        if (asked := getattr(config, name)) != value:
            raise UsageError(f"{where} and {config.label(name)} {asked} cannot go together yet; leave one of them out")
    if ":" in config.nnodes and len({*config.nnodes.split(":")}) > 1:
        raise UsageError(f"{where} and --nnodes {config.nnodes} cannot go together yet; give one number of hosts")
    if runtime_placement(parse_policy(config.policy)) == "servers":
        raise UsageError(
            f"{where} and policy {config.policy} exclude each other: it runs on parameter servers, which hold no "
            "sharded models; use bsp, local, diloco or selsync"
        )


def group_environment(config: JobConfig, rank: int) -> dict[str, str]:
    """In place of a worker's place in the job, that of a process in its group.

    >>> environment = group_environment(JobConfig(group_size=2, workers=3), 5)
    >>> environment["POLYRHYTHM_GROUP"], environment["RANK"], environment["WORLD_SIZE"]
    ('2:3', '1', '2')
    >>> group_environment(JobConfig(), 5)
    {}
    """
    if config.group_size == 1:
        return {}
    group, place = divmod(rank, config.group_size)
    ranks = dict.fromkeys(("RANK", "ROLE_RANK"), str(place))
    sizes = dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), str(config.group_size))
    return {GROUP: f"{group}:{config.workers}", "MASTER_ADDR": "127.0.0.1", **ranks, **sizes}


@contextmanager
def store_ports(node: Node, processes: int, size: int) -> Iterator[Sequence[int]]:
    """For each process of this host the port of torch's own store: that of the job, or of its group."""
    with ExitStack() as stack:
        if size == 1:
            yield [stack.enter_context(store_port(node))] * processes
            return
        kept = [stack.enter_context(reserve_port()) for _ in range(processes // size)]
        yield [port_of(sock) for sock in kept for _ in range(size)]
