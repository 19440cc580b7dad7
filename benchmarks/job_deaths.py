"""Everything of a job killed at seeded moments, by policy: whether the same command goes on, and is exact.

``job_deaths.py [MOMENTS [SEED]]``. Three workers train with ``--checkpoint --every 0.25s`` until coordinator and
workers are killed at once; the same job then goes on, on two or three workers, to its end. Every attempt at a sample
moves a parameter of that sample, one of 32 at random, so what was lost or made twice is read from the parameters.

Exits with 1 if a job does not finish, or a sample is lost or made twice.
"""

import random
import signal
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import NamedTuple

import torch
from _jobs import address_of, join, serve
from rich.console import Console
from rich.table import Table
from torch import Tensor

import polyrhythm
from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.wire.connection import listen
from polyrhythm.runtime.wire.job_config import JobConfig, coordinator_address
from polyrhythm.testing.coordinates import SampleAttempts, train_attempts
from polyrhythm.testing.processes import Workers, WorkersError, workers

MOMENTS, SEED = 10, 1
POLICIES = ("bsp", "asp", "ssp:3", "local:8", "selsync:0.05")
WORKERS, BATCH, SAMPLES, EPOCHS, SLOTS = 3, 2, 480, 2, 32
COMPUTE_S, EVERY, LIMIT_S = 0.003, "0.25s", 120.0


class Moment(NamedTuple):
    """One job that was killed; `kept` says whether it had a checkpoint then."""

    policy: str
    kept: bool
    trouble: str


def train(rank: int, settings: JobConfig) -> Tensor:
    """Body of a worker; its parameters at the end."""
    join(rank, address_of(settings))
    model = SampleAttempts(EPOCHS, SAMPLES, SLOTS, BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with polyrhythm.session(model, optimizer) as session:
        train_attempts(session, model, optimizer, BATCH, COMPUTE_S)
    return model.weight.detach().clone()


def run(policy: str, count: int, folder: str, at: int | None) -> list[Tensor]:
    """A job that is killed when so many samples are made, or the parameters at its end."""
    name = f"killed-{uuid.uuid4().hex[:12]}"
    settings = JobConfig(job=name, workers=count, policy=policy, epochs=EPOCHS, checkpoint=folder, every=EVERY)
    with listen(coordinator_address(name)) as listener, workers(serve, 1, settings, listener) as keeper:
        listener.close()
        with workers(train, count, settings) as ranks:
            if at is not None:
                kill_at(name, at, keeper, ranks)
                return []
            outcomes = ranks.join(LIMIT_S)
    failed = [outcome.traceback.strip().split("\n")[-1] for outcome in outcomes if not outcome.ok]
    if failed:
        raise WorkersError(failed[0])
    return [outcome.value for outcome in outcomes]


def kill_at(job: str, at: int, *groups: Workers) -> None:
    """kill -9 of all processes."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            if steer.status(steer.at(job), LIMIT_S).samples >= at:
                break
        except PolyrhythmError:
            break
        time.sleep(0.002)
    for group in groups:
        for place in range(len(group.processes)):
            group.kill(place, signal.SIGKILL)
    for group in groups:
        for one in group.processes:
            one.join()


def play(seed: int) -> Moment:
    """The moment of a seed."""
    policy, chance = POLICIES[seed % len(POLICIES)], random.Random(seed)
    at, following = chance.randrange(1, EPOCHS * SAMPLES - 60), chance.choice([2, 3])
    with tempfile.TemporaryDirectory() as folder:
        run(policy, WORKERS, folder, at)
        kept = any(Path(folder).glob("checkpoint-*"))
        try:
            found = run(policy, following, folder, None)
        except WorkersError as error:
            return Moment(policy, kept, str(error).split("\n")[0])
    return Moment(policy, kept, trouble(found))


def trouble(found: list[Tensor]) -> str:
    """What is wrong with the parameters at the end; nothing if they are exact."""
    if any(not torch.equal(found[0], other) for other in found[1:]):
        return "the workers differ"
    made = (found[0] != 0).sum(-1)
    missing, again = int((made == 0).sum()), int((made > 1).sum())
    return f"{missing} samples lost, {again} made twice" if missing or again else ""


def main(count: int, first: int) -> str | None:
    """What went wrong."""
    played = []
    for seed in range(first, first + count):
        played.append(play(seed))
        print(f"seed {seed}: {played[-1]}", flush=True)
    table = Table("policy", "moments", "with a checkpoint", "failed", title=f"{count} moments")
    for policy in POLICIES:
        own = [moment for moment in played if moment.policy == policy]
        counts = len(own), sum(moment.kept for moment in own), sum(bool(moment.trouble) for moment in own)
        table.add_row(policy, *map(str, counts))
    Console().print(table)
    wrong = sum(bool(moment.trouble) for moment in played)
    return f"{wrong} of {count} failed" if wrong else None


if __name__ == "__main__":
    given = [*map(int, sys.argv[1:3]), *(MOMENTS, SEED)[len(sys.argv[1:3]) :]]
    sys.exit(main(given[0], given[1]))
