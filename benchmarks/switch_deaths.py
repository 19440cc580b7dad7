"""Workers killed at seeded moments of a switch: whether the job finishes, whether its samples are exact, and its pause.

``switch_deaths.py [MOMENTS [SEED]]``. Four workers train a model in which every sample is a coordinate, which is zero
until a step with this sample is in the parameters. Somebody asks for another policy, and up to 100 ms later a worker is
killed; in some cases a second one follows 5 to 60 ms after the first. The pause is the longest time in which no sample
was completed, from the request on. It is seen from outside, by asking the coordinator again and again.

Exits with 1 if a job does not finish, a sample is lost, or a pause is longer than the bar.
"""

import logging
import os
import random
import signal
import sys
import time
from typing import Any, NamedTuple

import msgspec
import torch
from rich.console import Console
from rich.table import Table

import polyrhythm
from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.coordinator.server import CoordinatorServer
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.launch.rendezvous import wait_for_coordinator
from polyrhythm.runtime.wire.connection import listen
from polyrhythm.runtime.wire.control_protocol import Status
from polyrhythm.runtime.wire.job_config import JobConfig, coordinator_address
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.testing.coordinates import SampleNumbers, SampleWeights
from polyrhythm.testing.processes import WorkersError, workers

MOMENTS, SEED = 60, 1
WORKERS, BATCH, SAMPLES = 4, 2, 1200
COMPUTE_S, LIMIT_S, BAR_S = 0.002, 40.0, 1.0


class Case(NamedTuple):
    """A switch, and how many die in it; without another policy two die one after the other."""

    policy: str
    following: str
    deaths: int = 1

    @property
    def name(self) -> str:
        """For the table."""
        switch = f"{self.policy} -> {self.following}" if self.following != self.policy else self.policy
        return f"{switch}, {self.deaths} deaths" if self.deaths > 1 else switch


CASES = [
    Case("local:4", "ssp:3"),
    Case("bsp", "asp"),
    Case("asp", "bsp"),
    Case("selsync:0.05", "selsync:0.05", 2),
    Case("local:4", "ssp:3", 2),
    Case("asp", "local:4"),
    Case("esync", "bsp"),
    Case("k-sync:3", "esync"),
    Case("bsp", "selsync:0.05", 2),
    Case("diloco:4", "asp", 2),
]


class Outcome(NamedTuple):
    """Of one moment: what went wrong, if anything, and the longest pause."""

    case: Case
    trouble: str
    pause_s: float


def train(rank: int, address: str, job: str) -> tuple[list[float], Status]:
    """One epoch; the parameters, and what the coordinator counts."""
    os.environ |= {"POLYRHYTHM_COORDINATOR": address, "RANK": str(rank)}
    logging.disable(logging.WARNING)
    model = SampleWeights(SAMPLES)
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    with polyrhythm.session(model, sgd) as session:
        for indices in session.loader(SampleNumbers(SAMPLES), BATCH):
            time.sleep(COMPUTE_S)
            sgd.zero_grad()
            model(indices).backward()
            sgd.step()
        return model.weight.tolist(), steer.status(steer.at(job))


def serve(_: int, settings: JobConfig) -> None:
    """The coordinator; that it loses workers is no news here."""
    logging.disable(logging.WARNING)
    CoordinatorServer(settings, listen(coordinator_address(settings.job))).run()


def samples(job: str) -> int:
    """What the job has processed."""
    return steer.status(steer.at(job)).samples


def play(case: Case, seed: int) -> Outcome:
    """One job, with its deaths at the moments of this seed."""
    job = f"benchmark-{os.getpid()}-{seed}"
    settings = JobConfig(job=job, policy=case.policy, workers=WORKERS)
    address = msgspec.json.encode(Address(coordinator_address(job), job)).decode()
    with workers(serve, 1, settings):
        wait_for_coordinator(coordinator_address(job))
        with workers(train, WORKERS, address, job) as running:
            while samples(job) < SAMPLES // 6:
                time.sleep(0.002)
            pause_s, victims = disturb(case, job, running, random.Random(seed))
            try:
                outcomes = running.join(LIMIT_S, leave=victims)
            except WorkersError as error:
                return Outcome(case, str(error).split("\n", maxsplit=1)[0], pause_s)
    return Outcome(case, trouble_of([outcome.value or outcome.traceback for outcome in outcomes]), pause_s)


def disturb(case: Case, job: str, running: Any, chance: random.Random) -> tuple[float, list[int]]:
    """Switch, and kill; the longest pause until the job is through or stands, and who was killed."""
    victims = chance.sample(range(WORKERS), case.deaths)
    due_s = [chance.uniform(0.0, 0.1)]
    due_s += [due_s[0] + chance.uniform(0.005, 0.06)] * (case.deaths - 1)
    if case.following != case.policy:
        steer.switch(steer.at(job), case.following)
    begin = progressed = time.perf_counter()
    seen, pause_s, killed = samples(job), 0.0, 0
    while seen < SAMPLES - WORKERS * BATCH * 2 and progressed > time.perf_counter() - LIMIT_S:
        now = time.perf_counter()
        if killed < case.deaths and now >= begin + due_s[killed]:
            running.kill(victims[killed], signal.SIGKILL)
            killed += 1
        try:
            count = samples(job)
        except PolyrhythmError:  # it has ended
            break
        if count != seen:
            pause_s, progressed, seen = max(pause_s, now - progressed), now, count
        time.sleep(0.001)
    return max(pause_s, time.perf_counter() - progressed), victims


def trouble_of(outcomes: list[Any]) -> str:
    """What is wrong with what the survivors have."""
    for outcome in outcomes:
        if isinstance(outcome, str):
            return outcome.strip().split("\n")[-1] or "a survivor died"
    weights, state = outcomes[0]
    missing = sum(weight == 0 for weight in weights)
    if any(theirs != weights for theirs, _ in outcomes):
        return "the survivors differ"
    if state.samples + state.skipped != SAMPLES or missing != state.skipped or state.skipped >= WORKERS:
        return f"{state.samples} samples and {state.skipped} skipped of {SAMPLES}, {missing} are in no parameter"
    return ""


def main(moments: int, first: int) -> str | None:
    """What went wrong."""
    played = []
    for seed in range(first, first + moments):
        played.append(play(CASES[seed % len(CASES)], seed))
        if played[-1].trouble or played[-1].pause_s > BAR_S:
            print(f"seed {seed}: {played[-1]}", flush=True)
    table = Table("case", "moments", "failed", "longest pause (ms)", "median (ms)", title=f"{moments} moments")
    for case in CASES:
        own = [outcome for outcome in played if outcome.case == case]
        pauses = sorted(outcome.pause_s * 1e3 for outcome in own)
        if own:
            failed = sum(bool(outcome.trouble) for outcome in own)
            table.add_row(case.name, str(len(own)), str(failed), f"{pauses[-1]:.0f}", f"{pauses[len(own) // 2]:.0f}")
    Console().print(table)
    wrong = [outcome for outcome in played if outcome.trouble]
    long = [outcome for outcome in played if not outcome.trouble and outcome.pause_s > BAR_S]
    return f"{len(wrong)} failed, {len(long)} paused for longer than {BAR_S:g} s" if wrong or long else None


if __name__ == "__main__":
    given = [int(argument) for argument in sys.argv[1:3]]
    sys.exit(main(*(given + [MOMENTS, SEED][len(given) :])))
