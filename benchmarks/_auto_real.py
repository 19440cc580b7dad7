"""Scenarios that two cores can play with real workers, because a step is a sleep, and what a policy makes of them."""

import math
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
from _hosts import network, outputs, python

from polyrhythm.cli.local import emulations
from polyrhythm.core import Joined, Report, Trace
from polyrhythm.emulation.local import LocalRun, run_local
from polyrhythm.emulation.trainer import TrainerPlan
from polyrhythm.policies import parse_policy
from polyrhythm.sim import Compute, Device, Faults, Scenario, Straggler
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.task import Task
from polyrhythm.training.data.tasks import build_task

ROUNDS, STEP_S, BATCH = 250, 0.03, 16
MINUTE_S, LONG_STEP_S, LONG_ROUNDS = 60.0, 0.1, 800
"""A straggler that comes late; longer steps, since so many short ones would only keep the processors busy."""

RATE_MBIT = 200
"""Of a thin link: an exchange of the model `wide` takes more than two steps there."""

SETTLED = 0.95
"""Share of the best policy's pace from which one does what the best one does."""

SEARCHED = 0.75
"""Share of a stretch in which that must begin, because less than the rest says nothing."""

SCRIPT = str(Path(__file__).parent / "_paced_trainer.py")


class Case(NamedTuple):
    """What is played, whether on a host for each worker with thin links, and how often at most."""

    scenario: Scenario
    hosts: bool = False
    repeats: int = 9


class Curve(NamedTuple):
    """Samples that had been processed at which seconds of the job, from the first step on."""

    times: list[float]
    samples: list[int]

    @classmethod
    def of(cls, folder: Path) -> "Curve":
        """From the traces of a job, one a phase."""
        paths = sorted(folder.glob("*.jsonl"), key=lambda path: int(path.stem.rpartition("-")[2]))
        events = [entry.event for path in paths for entry in Trace.load(path).entries]
        start_s = next(event.time_s for event in events if isinstance(event, Joined))
        curve = cls([0.0], [0])
        for event in events:
            if isinstance(event, Report):
                curve.times.append(event.time_s - start_s)
                curve.samples.append(curve.samples[-1] + event.samples)
        return curve

    @property
    def rate(self) -> float:
        """Samples a second."""
        return self.samples[-1] / self.times[-1]

    def rate_from(self, index: int) -> float:
        """From there to the end."""
        return (self.samples[-1] - self.samples[index]) / max(self.times[-1] - self.times[index], 1e-9)

    def after_s(self, time_s: float) -> int:
        """Index of the first report after a time."""
        return next(index for index, at_s in enumerate(self.times) if at_s >= time_s)


def settles(ours: Curve, best: Curve, change_s: float) -> float:
    """Seconds after the last change of the cluster from which ours is as fast as the best one, to the end; inf: never.

    The best one's pace is that of the second half of what follows the change. Ours is its mean from a moment to the
    end, so that it does not depend on single steps.

    >>> steady = Curve([float(second) for second in range(101)], [8 * second for second in range(101)])
    >>> late = Curve(steady.times, [2 * second if second < 20 else 40 + 8 * (second - 20) for second in range(101)])
    >>> settles(steady, steady, 0.0), settles(late, steady, 10.0)
    (0.0, 4.0)
    """
    pace = SETTLED * best.rate_from(best.after_s((change_s + best.times[-1]) / 2))
    first, last = ours.after_s(change_s), ours.after_s(change_s + SEARCHED * (ours.times[-1] - change_s))
    found = (index for index in range(first, last) if ours.rate_from(index) >= pace)
    return next((ours.times[index] - change_s for index in found), math.inf)


def change_s(scenario: Scenario) -> float:
    """When the cluster becomes what it then is, if that is said in seconds."""
    return max((slow.start_s or 0.0 for slow in scenario.faults.stragglers), default=0.0)


def cases(rounds: int) -> dict[str, Case]:
    """Twelve small clusters; times and steps at which something happens are in proportion to the rounds."""
    scale = rounds / ROUNDS

    def at(step: int) -> int:
        return round(step * scale)

    goes = [Straggler(workers=[n], start_step=at(40 + 80 * n), steps=at(40), slowdown=4.0) for n in range(3)]
    turns = [Straggler(workers=[turn % 4], start_step=8 * turn, steps=8, slowdown=3.0) for turn in range(60)]
    late = Straggler(workers=[1], start_s=MINUTE_S * scale, slowdown=4.0)
    later = Straggler(workers=[0], start_s=8.0 * scale, slowdown=3.0)
    chance = Compute(distribution="log-normal", deviation=0.5)
    slow_later = played([1.0] * 4, slow=[late], step_s=LONG_STEP_S)
    thin = played([1.0] * 4, slow=[later], model="wide")
    return {
        "2 workers, equal": Case(cut(played([1.0] * 2), rounds)),
        "2 workers, one 2x": Case(cut(played([1.0, 2.0]), rounds)),
        "3 workers, come and go": Case(cut(played([1.0] * 3, slow=goes), rounds)),
        "4 workers, equal": Case(cut(played([1.0] * 4), rounds)),
        "4 workers, one 4x": Case(cut(played([1.0] * 3 + [4.0]), rounds)),
        "4 workers, one 1.2x": Case(cut(played([1.0] * 3 + [1.2]), rounds)),
        "4 workers, one 4x after a minute": Case(cut(slow_later, round(LONG_ROUNDS * scale)), repeats=1),
        "4 workers, in turn": Case(cut(played([1.0] * 4, slow=turns), rounds)),
        "4 workers, by chance": Case(cut(played([1.0] * 4, chance), rounds)),
        "4 hosts, thin links, one 3x later": Case(cut(thin, rounds), hosts=True),
        "6 workers, two generations": Case(cut(played([1.0] * 3 + [2.5] * 3), rounds)),
        "8 workers, all different": Case(cut(played([1.0 + 0.2 * worker for worker in range(8)]), rounds)),
    }


NORMAL = Compute(distribution="normal", deviation=0.1)


def played(
    speeds: Sequence[float],
    compute: Compute = NORMAL,
    slow: Sequence[Straggler] = (),
    step_s: float = STEP_S,
    model: str = "mlp",
) -> Scenario:
    devices = [Device(compute_s=step_s * speed) for speed in speeds]
    training = TrainingConfig(batch_size=BATCH, learning_rate=0.01, model=model)
    return Scenario(devices=devices, compute=compute, faults=Faults(stragglers=list(slow)), training=training)


def cut(scenario: Scenario, rounds: int) -> Scenario:
    """With about so many rounds."""
    training = training_of(scenario)
    epochs = math.ceil(rounds * training.batch_size * scenario.workers / len(task_of(scenario).train))
    return msgspec.structs.replace(scenario, training=msgspec.structs.replace(training, epochs=epochs))


def training_of(scenario: Scenario) -> TrainingConfig:
    assert scenario.training is not None
    return scenario.training


def task_of(scenario: Scenario) -> Task:
    return digits(training_of(scenario).model)


@cache
def digits(model: str | None) -> Task:
    return build_task(TrainingConfig(model=model))


def play(name: str, case: Case, policy: str) -> Curve:
    """One job of real workers."""
    training, samples = training_of(case.scenario), len(task_of(case.scenario).train)
    steps = training.workload_samples(samples) // training.batch_size + 1
    run = LocalRun(name, parse_policy(policy), training, 0, emulations(case.scenario, 0, steps, 1.0))
    with tempfile.TemporaryDirectory() as folder:
        if case.hosts:
            on_hosts(run, Path(folder), samples)
        else:
            run_local(run, task_of(case.scenario), Path(folder) / "traces" / "phase-1.jsonl")
        return Curve.of(Path(folder) / "traces")


def on_hosts(run: LocalRun, folder: Path, samples: int) -> None:
    """A job of one worker on each of several hosts."""
    epochs, workers = run.epochs(samples), str(len(run.emulations))
    plan = TrainerPlan(run.training, run.seed, epochs, list(run.emulations))
    (folder / "plan").write_bytes(msgspec.msgpack.encode(plan))
    with network(len(run.emulations), RATE_MBIT) as hosts:
        where = ("--nnodes", workers, "--nproc-per-node", "1", "--rdzv-endpoint", hosts[0].address, "--rdzv-id", "auto")
        what = ("--policy", run.policy.spec, "--epochs", str(epochs), "--trace", str(folder / "traces"))
        command = ("-m", "polyrhythm", "run", *where, *what, "--node-rank")
        jobs = [python(host, *command, str(rank), SCRIPT, str(folder)) for rank, host in enumerate(hosts)]
        outputs(jobs)
