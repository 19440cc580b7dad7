"""A job that a worker joins and leaves all the time: every sample is made once, and nobody waits long.

``elastic.py [INTERVAL_S [EPOCHS [POLICY ...]]]``. Under each policy rank 2 leaves or joins INTERVAL_S seconds (15)
after the change before, until EPOCHS (100) are over; ranks 0 and 1 stay. Every sample of every epoch has parameters of
its own, of which an attempt moves one at random: what was lost or made twice is read from them. The pause of a change
is the longest time between the ends of two steps of a rank that stays, from the change until the next one. The loss is
that of a linear model on noisy data that is trained by the same steps: mean and standard deviation over the ends of the
last 20 epochs, beside those of a quiet job of 40 epochs without computing time.

Exits with 1 if a job does not finish, a sample is lost or made twice, a pause is longer than a second, or the two means
are further apart than two standard deviations of the quiet job's.
"""

import math
import statistics
import sys
import time
import uuid
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from _jobs import address_of, join, serve
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import polyrhythm
from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.wire.connection import listen
from polyrhythm.runtime.wire.control_protocol import DrainWorker
from polyrhythm.runtime.wire.job_config import JobConfig, coordinator_address
from polyrhythm.testing.coordinates import SampleNumbers
from polyrhythm.testing.processes import WorkersError, workers

POLICIES = ("bsp", "asp", "local:8", "selsync:0.05", "balanced")
INTERVAL_S, EPOCHS, QUIET_EPOCHS, LAST, BAR_S, LIMIT_S = 15.0, 100, 40, 20, 1.0, 120.0
WORKERS, BATCH, SAMPLES, SLOTS, FEATURES = 3, 2, 1024, 8, 16
COMPUTE_S, RATE, GUEST = 0.02, 0.02, 2


class Trained(NamedTuple):
    """What a rank has: the moved parameters of each sample, the loss by epoch, and when its steps were over."""

    made: Tensor
    losses: list[float]
    ends_s: list[float]


class Outcome(NamedTuple):
    """A policy's job: when rank 2 had left or joined, what the two others have, and what went wrong."""

    changes_s: list[float]
    stayed: list[Trained]
    trouble: str

    @property
    def pauses_s(self) -> list[float]:
        """One for each change but the last, after which the job may have ended."""
        return [self._longest(start, stop) for start, stop in pairwise(self.changes_s)]

    @property
    def loss(self) -> tuple[float, float]:
        """Mean and standard deviation over the ends of the last epochs."""
        losses = self.stayed[0].losses if self.stayed else [math.nan, math.nan]
        return statistics.mean(losses), statistics.stdev(losses)

    def _longest(self, start: float, stop: float) -> float:
        steps = (step for one in self.stayed for step in pairwise(one.ends_s))
        return max((end - begin for begin, end in steps if start < end <= stop), default=0.0)


class Taught(nn.Module):
    """A linear model, and beside it what shows which samples it has seen."""

    def __init__(self, epochs: int) -> None:
        super().__init__()
        self.line = nn.Linear(FEATURES, 1, bias=False)
        self.seen, self._chance = nn.Parameter(torch.zeros(epochs, SAMPLES, SLOTS)), torch.Generator()
        nn.init.zeros_(self.line.weight)
        self._chance.seed()

    def forward(self, epoch: int, indices: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The loss of a mini-batch."""
        moved = torch.randint(SLOTS, indices.shape, generator=self._chance)
        loss: Tensor = (self.line(x)[:, 0] - y).square().mean() - self.seen[epoch, indices, moved].sum() / BATCH
        return loss


def task() -> tuple[Tensor, Tensor]:
    """Noisy data of a line."""
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(SAMPLES, FEATURES, generator=generator)
    noise = 0.1 * torch.randn(SAMPLES, generator=generator)
    return x, x @ torch.randn(FEATURES, generator=generator) + noise


def train(place: int, first: int, settings: JobConfig, epochs: int, compute_s: float) -> Trained:
    """Body of a worker."""
    join(first + place, address_of(settings))
    model, (x, y), ends_s, losses = Taught(epochs), task(), list[float](), list[float]()
    groups: list[dict[str, Any]] = [{"params": [model.line.weight]}, {"params": [model.seen], "lr": 1.0}]
    optimizer = torch.optim.SGD(groups, lr=RATE)
    with polyrhythm.session(model, optimizer) as session:
        for epoch in range(epochs):
            for indices in session.loader(SampleNumbers(SAMPLES), batch_size=BATCH):
                optimizer.zero_grad()
                time.sleep(compute_s)
                model(epoch, indices, x[indices], y[indices]).backward()
                optimizer.step()
                ends_s.append(time.monotonic())
            with torch.no_grad():
                losses.append(float((model.line(x)[:, 0] - y).square().mean()))
    return Trained((model.seen.detach() != 0).sum(-1), losses[-LAST:], ends_s)


def await_guest(job: str, there: bool) -> bool:
    """Until rank 2 is a member, or none any more; False if the job is over before."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        try:
            if (GUEST in steer.status(steer.at(job), LIMIT_S).members) == there:
                return True
        except PolyrhythmError:
            return False
        time.sleep(0.02)
    raise WorkersError(f"rank {GUEST} is {'no' if there else 'a'} member after {LIMIT_S:g} s")


def run(policy: str, epochs: int, interval_s: float, compute_s: float) -> Outcome:
    """A job in which rank 2 comes and goes, or, with an interval of 0, stays."""
    name, changes_s = f"elastic-{uuid.uuid4().hex[:12]}", list[float]()
    settings = JobConfig(job=name, workers=WORKERS, policy=policy, epochs=epochs)
    given = settings, epochs, compute_s
    with ExitStack() as stack, listen(coordinator_address(name)) as listener:
        stack.enter_context(workers(serve, 1, settings, listener))
        listener.close()
        staying = stack.enter_context(workers(train, GUEST, 0, *given))
        stack.enter_context(workers(train, 1, GUEST, *given))
        await_guest(name, True)
        while interval_s:
            time.sleep(interval_s)
            changes_s.append(time.monotonic())
            leaves = len(changes_s) % 2
            try:
                if leaves:
                    steer.ask(steer.at(name), DrainWorker(GUEST))
                else:
                    stack.enter_context(workers(train, 1, GUEST, *given))
            except PolyrhythmError:
                break
            if not await_guest(name, not leaves):
                break
        outcomes = staying.join(LIMIT_S + 3 * epochs)
    failed = [outcome.traceback.strip().split("\n")[-1] for outcome in outcomes if not outcome.ok]
    stayed = [outcome.value for outcome in outcomes if outcome.ok]
    return Outcome(changes_s, stayed, failed[0] if failed else trouble(stayed))


def trouble(stayed: list[Trained]) -> str:
    """What is wrong with the parameters; nothing if they are exact."""
    made = stayed[0].made
    if any(not torch.equal(made, other.made) for other in stayed):
        return "the workers differ"
    missing, again = int((made == 0).sum()), int((made > 1).sum())
    return f"{missing} samples lost, {again} made twice" if missing or again else ""


def missed(found: Outcome, quiet: Outcome) -> str:
    """Which bar a job misses; nothing if it meets all."""
    longest, (mean, _), (usual, deviation) = max(found.pauses_s, default=0.0), found.loss, quiet.loss
    if found.trouble or quiet.trouble:
        return found.trouble or quiet.trouble
    if longest > BAR_S:
        return f"a pause of {longest:.2f} s"
    return f"a loss of {mean:.5f} in place of {usual:.5f}" if abs(mean - usual) > 2 * deviation else ""


def main(interval_s: float, epochs: int, policies: Sequence[str]) -> str | None:
    """What missed its bar."""
    table = Table("policy", "changes", "samples", "median pause (s)", "longest (s)", "loss", "quiet")
    wrong = []
    for policy in policies:
        quiet, found = run(policy, QUIET_EPOCHS, 0.0, 0.0), run(policy, epochs, interval_s, COMPUTE_S)
        pauses, bad = found.pauses_s or [0.0], missed(found, quiet)
        wrong += [f"{policy}: {bad}"] if bad else []
        losses = (f"{mean:.5f} ± {deviation:.5f}" for mean, deviation in (found.loss, quiet.loss))
        figures = f"{statistics.median(pauses):.3f}", f"{max(pauses):.3f}"
        table.add_row(policy, str(len(pauses)), found.trouble or "each once", *figures, *losses)
        print(f"{policy}: {' '.join(f'{pause:.3f}' for pause in pauses)}; {bad or 'nothing wrong'}", flush=True)
    Console().print(table)
    return "; ".join(wrong) or None


if __name__ == "__main__":
    given = [*sys.argv[1:3], *map(str, (INTERVAL_S, EPOCHS)[len(sys.argv[1:3]) :])]
    sys.exit(main(float(given[0]), int(given[1]), sys.argv[3:] or POLICIES))
