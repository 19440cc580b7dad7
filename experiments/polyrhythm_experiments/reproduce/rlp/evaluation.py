"""Policies compared on the same instances: mean times, their ratios, and how sure these are."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import joblib
import numpy as np

from polyrhythm.core import Policy, TraceWriter
from polyrhythm.policies import parse_policy
from polyrhythm.policies.rlp.network import Learned, load
from polyrhythm.rl.acting import Acting, blank
from polyrhythm.rl.dqn import GreedyAgent
from polyrhythm.rl.episode import Episode
from polyrhythm.rl.instances import Instance
from polyrhythm.rl.learn import TEACHERS
from polyrhythm.sim.run import processes_for
from polyrhythm.sim.tied import delayed
from polyrhythm.telemetry import RunResult
from polyrhythm.training.gradient import one_thread
from polyrhythm_experiments.reproduce.rlp.families import family_of, job_of

HELD_OUT_SEED = 1_000_000
"""Seeds from here on are held out: no training and no validation uses them."""
RESAMPLES = 4000
"""Of a bootstrap."""
PAPER_DQN = "paper's DQN"
"""In place of a spec: what the preset `paper` has learned, in `PAPER_FILE`. Nothing takes over outside of what it was
trained for, as in the paper."""
PAPER_FILE = Path(__file__).with_name("paper.json")


@dataclass(frozen=True, slots=True)
class Ratio:
    """Ratio of two mean times, with its 95 % interval.

    >>> print(Ratio(1.234, 1.1, 1.4, wins=20, losses=4))
    1.23x (1.10 to 1.40), 20 : 4
    """

    value: float
    low: float
    high: float
    wins: int
    losses: int

    @property
    def interval(self) -> str:
        return f"{self.value:.2f}x ({self.low:.2f} to {self.high:.2f})"

    def __str__(self) -> str:
        return f"{self.interval}, {self.wins} : {self.losses}"


def compare(theirs: Sequence[float], ours: Sequence[float], seed: int = 0) -> Ratio:
    """How many times faster we are: the mean of their times by the mean of ours, on the same instances.

    The interval is that of a bootstrap over instances, which keeps the pairs together. The ratio of means is what a
    user saves over many jobs; the mean of ratios would count a lucky short job as much as a long one.

    >>> compare([2.0, 4.0, 6.0], [1.0, 2.0, 3.0])
    Ratio(value=2.0, low=2.0, high=2.0, wins=3, losses=0)
    """
    a, b = np.asarray(theirs), np.asarray(ours)
    rows = np.random.default_rng(seed).integers(len(a), size=(RESAMPLES, len(a)))
    low, high = np.quantile(a[rows].mean(1) / b[rows].mean(1), (0.025, 0.975))
    wins, losses = int((b < a).sum()), int((b > a).sum())
    return Ratio(float(a.mean() / b.mean()), float(low), float(high), wins, losses)


def best_of(times: dict[str, list[float]], names: Sequence[str] = TEACHERS) -> str:
    """The name with the least mean time.

    >>> best_of({"asp": [2.0, 2.0], "bsp": [1.0, 4.0]}, ["asp", "bsp"])
    'asp'
    """
    return min(names, key=lambda name: fmean(times[name]))


def spec_for(spec: str, workers: int) -> str:
    """A spec whose {k} is seven tenths of the workers, the expected number without a straggler.

    >>> spec_for("k-group:{k}", 10), spec_for("bsp", 10)
    ('k-group:7', 'bsp')
    """
    return spec.format(k=max(1, round(0.7 * workers)))


def paper_learned() -> Learned:
    return load(str(PAPER_FILE))


def policy_for(spec: str, workers: int) -> Policy[Any]:
    """The policy of a spec, or the paper's DQN."""
    if spec != PAPER_DQN:
        return parse_policy(spec_for(spec, workers))
    learned = paper_learned()
    agent = GreedyAgent(learned.network, epsilon=0.0, rng=np.random.default_rng(0))
    return Acting(given=blank(learned.view, loss=learned.loss), agent=agent)


def instances(family: str, count: int, seed: int = HELD_OUT_SEED) -> list[Instance]:
    return [job_of(family_of(family), seed + index) for index in range(count)]


def measure(instance: Instance, spec: str, folder: str | None = None, writer: TraceWriter | None = None) -> RunResult:
    with one_thread():
        episode = Episode(instance, policy_for(spec, instance.workers), folder, writer=writer).run()
    result = episode.result()
    result.duration_s, result.policy = episode.time_s, spec_for(spec, instance.workers)
    return result


def measure_all(
    jobs_to_run: Sequence[tuple[Instance, str]], folder: str | None = None, jobs: int = -1
) -> list[RunResult]:
    """Many jobs, on so many cores, in their order."""
    jobs = processes_for(jobs_to_run, jobs)
    if jobs == 1:
        return [measure(instance, spec, folder) for instance, spec in jobs_to_run]
    calls = [delayed(measure)(instance, spec, folder) for instance, spec in jobs_to_run]
    return list(joblib.Parallel(n_jobs=jobs)(calls))


def times_of(
    family: str,
    specs: Sequence[str],
    count: int,
    folder: str | None = None,
    jobs: int = -1,
    seed: int = HELD_OUT_SEED,
) -> dict[str, list[float]]:
    """Times of each spec on the same instances, held out unless another first seed is given, in seconds."""
    pairs = [(instance, spec) for spec in specs for instance in instances(family, count, seed)]
    results = iter(measure_all(pairs, folder, jobs))
    return {spec: [next(results).duration_s for _ in range(count)] for spec in specs}
