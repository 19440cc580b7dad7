"""A coordinator, or a server, killed at seeded moments, by policy: whether the job finishes, is exact, and its pause.

``coordinator_deaths.py [MOMENTS [SEED [FILE]]]``. Where there are two servers, the one that is not beside the
coordinator is killed. Three workers train a model in which every attempt at a sample moves
a parameter of that sample, one of 32 at random; so what was lost or made twice is read from the parameters. Under bsp
a sample has one parameter, and every bit must be that of an undisturbed run. The pause is the time from the kill until
the job has made samples in a later phase; it is seen from outside, by asking the coordinator again and again. With
FILE, results are kept there as JSON lines, and seeds that it has are not played again.

Exits with 1 if a job does not finish, a sample is lost or made twice, or the median pause is longer than the bar.
"""

import os
import random
import signal
import statistics
import sys
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import torch
from _jobs import address_of, join, serve
from rich.console import Console
from rich.table import Table
from torch import Tensor

import polyrhythm
from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.wire.connection import listen
from polyrhythm.runtime.wire.control_protocol import Status
from polyrhythm.runtime.wire.job_config import JobConfig, coordinator_address
from polyrhythm.testing.coordinates import SampleAttempts, train_attempts
from polyrhythm.testing.processes import WorkersError, first_child, workers

MOMENTS, SEED = 36, 1
FAMILIES = ("bsp", "asp", "ssp:3", "local:8", "selsync:0.05", "esync", "asp on 2 servers", "ssp:3 on 2 servers")
WORKERS, BATCH, SAMPLES, EPOCHS, SLOTS = 3, 2, 480, 2, 32
COMPUTE_S, SNAPSHOT, LIMIT_S, BAR_S = 0.003, "0.5s", 60.0, 2.0


class Moment(msgspec.Struct, frozen=True):
    """One coordinator that was killed."""

    seed: int
    policy: str
    at: int
    pause_s: float
    trouble: str


def train(rank: int, settings: JobConfig, slots: int) -> Tensor:
    """Body of a worker; its parameters at the end."""
    join(rank, address_of(settings))
    model = SampleAttempts(EPOCHS, SAMPLES, slots, BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with polyrhythm.session(model, optimizer) as session:
        train_attempts(session, model, optimizer, BATCH, COMPUTE_S)
    return model.weight.detach().clone()


def look(job: str) -> Status | None:
    """How the job is; nothing if nobody answers."""
    try:
        return steer.status(steer.at(job), LIMIT_S)
    except PolyrhythmError:
        return None


def run(policy: str, at: int | None) -> tuple[list[Tensor], float]:
    """A job whose coordinator is killed when so many samples are made; the workers' parameters, and the pause."""
    name = f"deaths-{uuid.uuid4().hex[:12]}"
    spec, _, several = policy.partition(" on ")
    settings = JobConfig(job=name, workers=WORKERS, policy=spec, snapshot=SNAPSHOT, shards=2 if several else 1)
    with listen(coordinator_address(name)) as listener, workers(serve, 1, settings, listener) as keeper:
        listener.close()
        with workers(train, WORKERS, settings, 1 if policy == "bsp" else SLOTS) as ranks:
            pause_s = 0.0 if at is None else kill_at(name, keeper.processes[0].pid or 0, at, bool(several))
            outcomes = ranks.join(LIMIT_S)
    failed = [outcome.traceback.strip().split("\n")[-1] for outcome in outcomes if not outcome.ok]
    if failed:
        raise WorkersError(failed[0])
    return [outcome.value for outcome in outcomes], pause_s


def kill_at(job: str, keeper: int, at: int, server: bool) -> float:
    """Kill the coordinator, or a server; seconds until the job has gone on."""
    while (before := look(job)) is None or before.samples < at:
        time.sleep(0.002)
    coordinator = first_child(keeper)
    os.kill(first_child(coordinator) if server else coordinator, signal.SIGKILL)
    start = time.monotonic()
    while time.monotonic() < start + LIMIT_S:
        now = look(job)
        if now is None or (now.phase > before.phase and now.steps > 0):
            break
        time.sleep(0.002)
    return time.monotonic() - start


def play(seed: int, quiet: list[Tensor]) -> Moment:
    """The moment of a seed."""
    policy = FAMILIES[seed % len(FAMILIES)]
    at = random.Random(seed).randrange(1, EPOCHS * SAMPLES - 60)
    try:
        found, pause_s = run(policy, at)
    except WorkersError as error:
        return Moment(seed, policy, at, LIMIT_S, str(error).split("\n")[0])
    return Moment(seed, policy, at, pause_s, trouble(policy, found, quiet))


def trouble(policy: str, found: list[Tensor], quiet: list[Tensor]) -> str:
    """What is wrong with the parameters at the end; nothing if they are exact."""
    if any(not torch.equal(found[0], other) for other in found[1:]):
        return "the workers differ"
    if policy == "bsp":
        return "" if torch.equal(found[0], quiet[0]) else "other bits than in an undisturbed run"
    made = (found[0] != 0).sum(-1)
    missing, again = int((made == 0).sum()), int((made > 1).sum())
    return f"{missing} samples lost, {again} made twice" if missing or again else ""


def main(moments: int, first: int, file: Path | None) -> str | None:
    """What went wrong."""
    quiet, _ = run("bsp", None)
    return told(play_all(range(first, first + moments), file, lambda seed: play(seed, quiet)))


def play_all(seeds: Sequence[int], file: Path | None, play_one: Callable[[int], Moment]) -> list[Moment]:
    """Those that the file has already are not played again, and the others are kept there."""
    lines = file.read_bytes().splitlines() if file is not None and file.exists() else []
    played = {moment.seed: moment for line in lines for moment in [msgspec.json.decode(line, type=Moment)]}
    for seed in seeds:
        if seed in played:
            continue
        played[seed] = moment = play_one(seed)
        if moment.trouble:
            print(f"seed {seed}: {moment}", flush=True)
        if file is not None:
            with file.open("ab") as stream:
                stream.write(msgspec.json.encode(moment) + b"\n")
    return [played[seed] for seed in seeds]


def told(played: list[Moment], families: tuple[str, ...] = FAMILIES) -> str | None:
    """Print the table; what missed its bar."""
    table = Table("policy", "moments", "failed", "median pause (s)", "longest (s)", title=f"{len(played)} moments")
    for policy in families:
        own = [moment for moment in played if moment.policy == policy]
        pauses = [moment.pause_s for moment in own]
        if own:
            failed = str(sum(bool(moment.trouble) for moment in own))
            figures = f"{statistics.median(pauses):.2f}", f"{max(pauses):.2f}"
            table.add_row(policy, str(len(own)), failed, *figures)
    Console().print(table)
    wrong, median = [moment for moment in played if moment.trouble], statistics.median(m.pause_s for m in played)
    return f"{len(wrong)} failed, median pause {median:.2f} s" if wrong or median > BAR_S else None


if __name__ == "__main__":
    counts = [*map(int, sys.argv[1:3]), *(MOMENTS, SEED)[len(sys.argv[1:3]) :]]
    sys.exit(main(counts[0], counts[1], Path(sys.argv[3]) if len(sys.argv) > 3 else None))
