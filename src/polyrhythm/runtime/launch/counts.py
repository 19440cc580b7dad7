"""How many hosts, workers and shards the command line asks for; read without torch, so that an answer is quick."""

import os
import resource

from polyrhythm.errors import UsageError

MOST_A_CORE = 32
"""Workers, or shards, for each core of a host; more are a mistake."""

FILES, FILES_A_WORKER = 26, 2
"""What a coordinator has open at least before its first worker comes, and for each of them, of sockets and memory."""

BY_HOST = ("auto", "cpu", "gpu")
"""Values of --nproc-per-node that the host decides, for which torch has to be asked."""


def read_hosts(value: str, place: str = "--nnodes") -> tuple[int, int]:
    """With how many hosts the job begins, and how many it may have: ``2`` or ``MIN:MAX``.

    >>> read_hosts("2"), read_hosts("1:3")
    ((2, 2), (1, 3))
    """
    least, colon, most = value.partition(":")
    if not (least.isdecimal() and (most.isdecimal() or not colon)) or not 1 <= int(least) <= int(most or least):
        raise UsageError(f"{place} must be a number of hosts of at least 1, or MIN:MAX, but got {value!r}")
    return int(least), int(most or least)


def read_processes(value: str, place: str = "--nproc-per-node") -> int:
    """Workers of this host; `place` is where their number was given."""
    if value in BY_HOST:
        import torch

        gpus = torch.cuda.device_count()
        if value == "gpu" and not gpus:
            raise UsageError(f"{place} gpu finds no GPU on this host; give a number, or cpu")
        return gpus if value == "gpu" or (value == "auto" and gpus) else os.cpu_count() or 1
    if not value.isdecimal() or int(value) < 1:
        raise UsageError(f"{place} must be a number of at least 1, auto, cpu or gpu but got {value!r}")
    return int(value)


def check_room(processes: int, shards: int, places: tuple[str, str] = ("--nproc-per-node", "--shards")) -> None:
    cores = os.cpu_count() or 1
    for flag, count in zip(places, (processes, shards), strict=True):
        if count > MOST_A_CORE * cores:
            raise UsageError(
                f"{flag} {count} is more than {MOST_A_CORE} processes for each of {cores} cores; use fewer"
            )


def check_open_files(workers: int) -> None:
    """Whether a coordinator may open what so many workers need at least.

    Raises:
        UsageError: if it may not. torch tries for minutes to get a socket, and prints its own frames.
    """
    needed, most = FILES + FILES_A_WORKER * workers, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    if most != resource.RLIM_INFINITY and most < needed:
        raise UsageError(
            f"too many open files: a job of {workers} workers needs at least {needed} in one process, and {most} are "
            "allowed; raise ulimit -n"
        )
