"""Unmodified scripts in real workers of a real job, and without one."""

import multiprocessing
import os
import signal
import sys
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from polyrhythm.errors import UsageError
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.script.bootstrap import execute, main
from polyrhythm.testing import cuda
from polyrhythm.testing.processes import first_child, workers
from tests.runtime.jobs import COORDINATOR_PID, LIMIT_S, job

SCRIPTS = Path(__file__).parent / "scripts"

KILL = "kill"
"""In place of a policy: the coordinator is killed, and another one follows; see `switched`."""


@dataclass
class Run:
    """A finished run of a script."""

    folder: Path
    codes: list[int]

    @property
    def ranks(self) -> range:
        """Of its workers."""
        return range(len(self.codes))

    def stdout(self, rank: int) -> list[str]:
        """Lines that a rank has printed."""
        return (self.folder / f"stdout.{rank}").read_text(encoding="utf-8").splitlines()

    def stderr(self, rank: int = 0) -> str:
        """What a rank has said."""
        return (self.folder / f"stderr.{rank}").read_text(encoding="utf-8")

    def epochs_of(self, rank: int) -> list[list[int]]:
        """Samples that one rank has seen in each epoch, in order."""
        lines = (self.folder / f"seen.{rank}").read_text(encoding="utf-8").splitlines()
        return [[int(word) for word in line.split()] for line in lines]

    @property
    def seen(self) -> list[list[int]]:
        """Samples that all ranks have seen in each epoch, sorted."""
        epochs = zip(*(self.epochs_of(rank) for rank in self.ranks), strict=True)
        return [sorted(index for part in epoch for index in part) for epoch in epochs]


def adapted(folder: Path, script: str, *arguments: str, policy: str = "bsp", ranks: int = 2, **settings: Any) -> Run:
    """A script as ``polyrhythm run`` starts it; it must succeed."""
    run = try_adapted(folder, script, *arguments, policy=policy, ranks=ranks, **settings)
    assert not any(run.codes), [run.stderr(rank) for rank in run.ranks]
    return run


def try_adapted(
    folder: Path,
    script: str,
    *arguments: str,
    policy: str = "bsp",
    ranks: int = 2,
    stand_in: bool = True,
    **settings: Any,
) -> Run:
    """A script as ``polyrhythm run`` starts it, with its exit codes; on request under the stand-in for CUDA."""
    front = ("-m", "polyrhythm.testing.cuda") if stand_in else ()
    command = (*front, str(SCRIPTS / script), *arguments)
    store = meeting_point()
    with job(play, ranks, folder, ranks, store.port, main, command, policy=policy, **settings) as running:
        outcomes = running.ranks.join(LIMIT_S)  # the coordinator still waits for those that end before they join
    assert all(outcome.ok for outcome in outcomes), [outcome.traceback for outcome in outcomes]
    return Run(folder, [outcome.value for outcome in outcomes])


def plain(folder: Path, script: str, *arguments: str, ranks: int = 2, stand_in: bool = True) -> Run:
    """The same script as torchrun starts it."""
    folder.mkdir(exist_ok=True)
    store = meeting_point()
    start = partial(run_without_us, cuda.main if stand_in else run_bare)
    with workers(play, ranks, folder, ranks, store.port, start, (str(SCRIPTS / script), *arguments)) as running:
        outcomes = running.join(LIMIT_S)
    assert all(outcome.ok for outcome in outcomes), [outcome.traceback for outcome in outcomes]
    return Run(folder, [0] * ranks)


def switched(
    folder: Path,
    script: str,
    *arguments: str,
    switches: dict[int, str],
    policy: str = "bsp",
    ranks: int = 2,
    stand_in: bool = True,
    refused: bool = False,
    **settings: Any,
) -> Run:
    """The same, and `polyrhythm ctl` switches the policy when the first rank has made so many steps; or is refused."""
    front = ("-m", "polyrhythm.testing.cuda") if stand_in else ()
    command = (*front, str(SCRIPTS / script), *arguments)
    name = f"test-{uuid.uuid4().hex}"
    start = partial(main_with_switches, name, switches, refused)
    store = meeting_point()
    with job(play, ranks, folder, ranks, store.port, start, command, policy=policy, name=name, **settings) as running:
        outcomes = running.ranks.join(LIMIT_S)
    run = Run(folder, [outcome.value if outcome.ok else 1 for outcome in outcomes])
    assert not any(run.codes), [*(outcome.traceback for outcome in outcomes), *map(run.stderr, run.ranks)]
    return run


def meeting_point() -> TCPStore:
    """The store of a job, which is there before its ranks, as under torchrun: a port that is only free may be taken."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


def main_with_switches(name: str, switches: dict[int, str], refused: bool, command: tuple[str, ...]) -> int:
    """Run a script, and ask from outside of it for another policy after some of its steps."""
    steps = Counter[Optimizer]()

    def switch(optimizer: Optimizer, *_: Any) -> None:
        steps[optimizer] += 1  # which may also be one of our own
        if optimizer is next(iter(steps)) and (policy := switches.get(steps[optimizer])):
            kill_coordinator() if policy == KILL else ask(policy)

    def ask(policy: str) -> None:
        try:
            steer.switch(steer.at(name), policy)
        except UsageError as error:
            if not refused:
                raise
            print(error, file=sys.stderr)

    if os.environ["RANK"] == "0":
        register_optimizer_step_post_hook(switch)
    return main(command)


def kill_coordinator() -> None:
    """As from outside of a job with `max_coordinator_restarts`."""
    os.kill(first_child(int(os.environ[COORDINATOR_PID])), signal.SIGKILL)


def run_bare(*command: str) -> None:
    execute(command)


def run_without_us(run: Callable[..., None], command: tuple[str, ...]) -> int:
    """Run a script without us.

    Its group outlives it: the destructor of torch's own, at the end of the script's main function, may wait for ever
    (torch 2.13 on the CPU, one of some hundred runs).
    """
    destroy, kept = dist.destroy_process_group, []

    def keep_and_destroy(group: dist.ProcessGroup | None = None) -> None:
        kept.append(dist.group.WORLD)
        destroy(group)

    dist.destroy_process_group = keep_and_destroy
    run(*command)
    return 0


def play(
    rank: int, folder: Path, ranks: int, port: int, start: Callable[[tuple[str, ...]], int], command: tuple[str, ...]
) -> int:
    """Body of a worker: the environment of torchrun, and files in place of the terminal."""
    world = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    place |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": 0}
    os.environ |= {name: str(value) for name, value in {**world, **place}.items()}
    multiprocessing.set_start_method("fork", force=True)  # the default, but not in a child of a fork server
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    with ExitStack() as stack:
        sys.stdout = stack.enter_context(open(f"stdout.{rank}", "w", encoding="utf-8"))
        sys.stderr = stack.enter_context(open(f"stderr.{rank}", "w", encoding="utf-8"))
        return start(command)
