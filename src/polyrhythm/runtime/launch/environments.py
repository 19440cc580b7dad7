"""A worker that somebody else has started: torchrun, Slurm's srun, or an operator of Kubernetes."""

import os
import re
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import NoReturn

import msgspec

from polyrhythm.errors import UsageError
from polyrhythm.lines import say
from polyrhythm.runtime.launch.groups import check_groups
from polyrhythm.runtime.launch.nodes import DEFAULT_PORT
from polyrhythm.runtime.launch.rendezvous import COORDINATOR
from polyrhythm.runtime.wire.config_sources import HANDED_ON
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.setting_values import MOST_NAMED, is_job_name

STARTERS = ("--nproc", "--nnodes", "--node", "--standalone", "--rdzv", "--no-python", "--no_python")
"""How flags begin that say that workers are to be started here."""


def is_placed(flags: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether this process is one of the workers already.

    >>> rank = {"RANK": "0", "WORLD_SIZE": "2"}
    >>> is_placed(["--policy", "asp"], rank), is_placed(["--nproc-per-node=2"], rank)
    (True, False)
    """
    if COORDINATOR in environment or any(flag.startswith(STARTERS) for flag in flags):
        return False
    return {"RANK", "WORLD_SIZE"} <= environment.keys() or int(environment.get("SLURM_NTASKS", "1")) > 1


def place_of(environment: Mapping[str, str]) -> dict[str, str]:
    """torchrun's variables, as far as they are missing, from what Slurm or an operator has set.

    >>> task = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}
    >>> job = {"SLURM_JOB_ID": "77", "SLURM_JOB_NODELIST": "gpu[07-08]", "SLURM_TASKS_PER_NODE": "2(x2)"}
    >>> place = place_of(task | job)
    >>> place["RANK"], place["LOCAL_WORLD_SIZE"], place["MASTER_ADDR"], place["TORCHELASTIC_RUN_ID"]
    ('3', '2', 'gpu07', 'slurm-77')
    """
    if "RANK" in environment:
        made = {"LOCAL_RANK": environment.get("LOCAL_RANK", "0")}
        made["LOCAL_WORLD_SIZE"] = environment.get("LOCAL_WORLD_SIZE", "1")
        endpoint = environment.get("MASTER_ADDR", "127.0.0.1"), environment.get("MASTER_PORT", str(DEFAULT_PORT))
        made["TORCHELASTIC_RUN_ID"] = environment.get("TORCHELASTIC_RUN_ID", run_id(endpoint))
        return {**made, "MASTER_ADDR": endpoint[0], "MASTER_PORT": endpoint[1]}
    job = environment["SLURM_JOB_ID"]
    return {
        "RANK": environment["SLURM_PROCID"],
        "WORLD_SIZE": environment["SLURM_NTASKS"],
        "LOCAL_RANK": environment["SLURM_LOCALID"],
        "LOCAL_WORLD_SIZE": equal_tasks(environment["SLURM_TASKS_PER_NODE"]),
        "GROUP_RANK": environment["SLURM_NODEID"],
        "MASTER_ADDR": first_host(environment["SLURM_JOB_NODELIST"]),
        "MASTER_PORT": str(20000 + int(job) % 10000),
        "TORCHELASTIC_RUN_ID": f"slurm-{job}",
    }


def run_id(endpoint: tuple[str, str]) -> str:
    """An id that fits into a job's name, however long or odd the name of the host.

    >>> run_id(("node0", "29400")), run_id(("fe80::1", "29400"))
    ('node0-29400', 'f45b5837400bfe1d')
    """
    text = "-".join(endpoint)
    fits = is_job_name(text) and len(text) <= MOST_NAMED // 2
    return text if fits else sha256(text.encode()).hexdigest()[:16]


def equal_tasks(text: str) -> str:
    """Tasks on each node, from Slurm's ``4(x2)``."""
    found = re.fullmatch(r"(\d+)(\(x\d+\))?", text)
    if not found:
        raise UsageError(f"SLURM_TASKS_PER_NODE is {text}; give srun --ntasks-per-node, so that all have as many")
    return found[1]


def first_host(nodes: str) -> str:
    """The first name of Slurm's ``gpu[07-08,11],login``."""
    found = re.match(r"([^\[,]+)(\[(\d+))?", nodes)
    assert found, "a job has nodes"
    return found[1] + (found[3] or "")


def become_worker(config: JobConfig, command: Sequence[str], overruled: Sequence[str]) -> NoReturn:
    """Go on as this worker; rank 0 says what is overruled, and starts the coordinator with this config."""
    refuse_restarts(config)
    check_groups(config, 0)
    place = place_of(os.environ)
    if {**os.environ, **place}["RANK"] == "0":
        say(*overruled)
    ours = {HANDED_ON: msgspec.json.encode(config).decode()}
    os.execve(sys.executable, [*command], {"PYTHONHASHSEED": "0", **os.environ, **place, **ours})


def refuse_restarts(config: JobConfig) -> None:
    """Whoever has started a worker starts it again. What torchrun reads, too, is for torchrun.

    >>> refuse_restarts(JobConfig(max_restarts=2, given={"max_restarts": "PET_MAX_RESTARTS"}))
    """
    where = config.label("max_restarts")
    if config.max_restarts and not where.startswith("PET_"):
        raise UsageError(
            f"{where} {config.max_restarts} is for workers that polyrhythm run starts, and this one was started by "
            "torchrun, Slurm or an operator; leave it out"
        )
