"""Learned policies: what they gain on held-out jobs, how fast they learn, and what a decision costs on real workers.

Prints five tables and exits with 1 if a bar is missed:

- the bandit or the policy that ships is at least 1.15 times as fast as the best of BSP, ASP and SSP(2, 5, 8) on the
  staleness-limited family; the policy that ships at least 1.1 times there, at least 1.0 times on every other family,
  and nowhere below 0.95 times its fallback, ASP. Ratios of mean times on the same held-out jobs;
- the paper's algorithm stays finite, and after pre-training is at least 0.9 times as fast as its best teacher; with
  --episodes N it then learns from N episodes, and what it reaches is printed, whatever it is;
- at least 8 training episodes a second on the paper's jobs, on two cores;
- a decision takes at most 2 % of a step of 10 real workers.

A fifth table, without a bar, holds the running loss against the one on the probe batch; with --loss probe the paper's
algorithm learns from the latter.

    python benchmarks/rlp.py [--instances 8] [--data FOLDER] [--episodes 1000 --pretraining 100 --keep FOLDER]

Fashion-MNIST's families need --data.
"""

import argparse
import math
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path
from statistics import correlation, fmean
from typing import Any

import joblib
from rich.console import Console
from rich.table import Table

from polyrhythm.core import Cluster, Header, LossMeasured, Policy, Report, Trace, TraceWriter
from polyrhythm.policies import ASP, RLP
from polyrhythm.policies.rlp.network import ValueNetwork, load
from polyrhythm.policies.rlp.policy import LOSSES
from polyrhythm.policies.rlp.views import SMOOTHING
from polyrhythm.rl.acting import Watched
from polyrhythm.rl.dqn import PRESETS
from polyrhythm.rl.episode import Episode
from polyrhythm.rl.instances import FAMILIES, Instance
from polyrhythm.rl.learn import TEACHERS, Study
from polyrhythm.rl.rollout import Rollout, play_all
from polyrhythm_experiments.reproduce.rlp.evaluation import HELD_OUT_SEED, best_of, compare, instances, times_of
from polyrhythm_experiments.reproduce.rlp.families import FIGURES, TRAINED

INSTANCES = 24
"""Held-out jobs of the family that was trained for."""
TRAINED_BAR, BEST_BAR, OTHER_BAR, FALLBACK_BAR = 1.1, 1.15, 1.0, 0.95
TEACHER_BAR = 0.9
EPISODES_PER_S = 8.0
INFERENCE = 0.02
CORES = 2
WARM_UP, TIMED = 16, 160
"""Episodes of the measured training: those in which processes start and import, and those that count."""
PRETRAINING = 20
"""Jobs of the paper's pre-training, if not told otherwise; its own 100 take five times as long."""
OTHERS = tuple(family for group in FIGURES.values() for family in group if family != TRAINED)
SPECS = (*TEACHERS, "k-group:{k}", "kbandit")


def gains(console: Console, arguments: argparse.Namespace) -> bool:
    """Every family: ours by the best of theirs."""
    table = Table("family", "jobs", "best of BSP, ASP, SSP", "K-group", "bandit", "rlp", "rlp by ASP", "bars")
    good = True
    for family in (TRAINED, *OTHERS):
        if FAMILIES[family].data != "digits" and arguments.data is None:
            continue
        count = max(INSTANCES, arguments.instances) if family == TRAINED else arguments.instances
        specs = (*SPECS, arguments.policy)
        spent = times_of(family, specs, count, arguments.data, seed=arguments.seed)
        best = spent[best_of(spent)]
        group, bandit, learned = (compare(best, spent[spec]) for spec in specs[-3:])
        fallback = compare(spent["asp"], spent[arguments.policy])
        trained = family == TRAINED
        kept = learned.value >= (TRAINED_BAR if trained else OTHER_BAR) and fallback.value >= FALLBACK_BAR
        kept &= not trained or max(bandit.value, learned.value) >= BEST_BAR
        good &= kept
        cells = (family, str(count), best_of(spent), *map(str, (group, bandit, learned, fallback)))
        table.add_row(*cells, "kept" if kept else "MISSED")
    console.print(table)
    return good


def paper(console: Console, arguments: argparse.Namespace) -> bool:
    """The paper's algorithm: pre-training, and more if asked for."""
    pool = instances("paper", arguments.instances)
    teachers = times_of("paper", TEACHERS, arguments.instances)
    best = best_of(teachers, TEACHERS)
    table = Table("the paper's DQN", "best teacher by it", "best teacher", "finite", "bar")
    good = True
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(arguments.keep or scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for episodes in (0, arguments.episodes) if arguments.episodes else (0,):
            network = learned(folder, arguments, episodes)
            finite = all(math.isfinite(value) for layer in network.layers for row in layer.weights for value in row)
            played = play_all([Rollout(each, "paper", network=network, loss=arguments.loss) for each in pool], -1)
            ratio = compare(teachers[best], [episode.end_s for episode in played])
            good &= finite and (episodes > 0 or ratio.value >= TEACHER_BAR)
            bar = "" if episodes else f"{TEACHER_BAR}"
            table.add_row(f"after {episodes} episodes", str(ratio), best, str(finite), bar)
    console.print(table)
    return good


def learned(folder: Path, arguments: argparse.Namespace, episodes: int) -> ValueNetwork:
    """What the paper's algorithm comes to after so many episodes; it goes on from what the folder holds."""
    pretraining, loss = arguments.pretraining, arguments.loss
    name = f"paper-{pretraining}" if loss == "running" else f"paper-{loss}-{pretraining}"
    done = folder / f"{name}-{episodes}.json"
    if not done.exists():
        preset = replace(PRESETS["paper"], pretraining=pretraining, episodes=episodes, loss=loss)
        study = Study(preset, folder / f"{name}.json")
        (study.resume() if study.checkpoint.exists() else study).run()
        study.out.replace(done)
    return load(str(done)).network


def losses(console: Console, arguments: argparse.Namespace) -> bool:
    """What the running loss of jobs under ASP says of the loss after each update, and what a probe costs."""
    table = Table("family", "jobs", "updates", "changes of one sign", "correlation", "probe", "gradient")
    for family in ("paper", TRAINED):
        pairs, gradient_s, probe_s = list[tuple[float, float]](), 0.0, 0.0
        for instance in instances(family, arguments.instances):
            seen, spent = changes(instance)
            pairs += seen
            gradient_s, probe_s = gradient_s + spent[0], probe_s + spent[1]
        running, after = zip(*pairs, strict=True)
        alike = fmean(ours * theirs > 0 for ours, theirs in pairs)
        cells = (f"{100 * alike:.0f} %", f"{correlation(running, after):.2f}")
        times = (f"{1e6 * spent_s / len(pairs):.0f} us" for spent_s in (probe_s, gradient_s))
        table.add_row(family, str(arguments.instances), f"{len(pairs):,}", *cells, *times)
    console.print(table)
    return True


def changes(instance: Instance) -> tuple[list[tuple[float, float]], tuple[float, float]]:
    """Changes of the running loss and of that on the probe batch, update by update; seconds of gradients and probes."""
    lines = StringIO()
    policy = Watched(watched=ASP(), loss="probe")
    episode = Episode(instance, policy, writer=TraceWriter(lines, Header(policy.spec, Cluster(instance.workers))))
    numerics = episode.engine.numerics
    spent = [timed(numerics, name) for name in ("report", "probe")]
    episode.run()
    lines.seek(0)
    running, probed = list[float](), list[float]()
    for event, _ in Trace.parse(lines).entries:
        if isinstance(event, Report) and event.loss is not None:
            running.append(event.loss if not running else running[-1] + SMOOTHING * (event.loss - running[-1]))
        elif isinstance(event, LossMeasured) and event.loss is not None:
            probed.append(event.loss)
    pairs = zip(pairwise(running), pairwise(probed), strict=False)  # the job may end before the last probe
    return [(new - old, after - before) for (old, new), (before, after) in pairs], (spent[0][0], spent[1][0])


def timed(numerics: Any, name: str) -> list[float]:
    """Seconds that a method takes from here on, all calls together."""
    method, spent = getattr(numerics, name), [0.0]

    def call(*given: Any) -> Any:
        started = time.perf_counter()
        try:
            return method(*given)
        finally:
            spent[0] += time.perf_counter() - started

    setattr(numerics, name, call)
    return spent


def speed(console: Console) -> bool:
    """Training episodes a second on the paper's jobs: exploring, and learning from them, by the clock on two cores."""
    preset = replace(PRESETS["tuned"], families=("paper",), pretraining=8, episodes=WARM_UP)
    with tempfile.TemporaryDirectory() as folder:
        study = Study(preset, Path(folder) / "speed.json", jobs=CORES)
        study.units, study.pretrained = [100.0] * preset.pretraining, True
        study._explore(WARM_UP)
        started = time.perf_counter()
        study._explore(WARM_UP + TIMED)
        rate = TIMED / (time.perf_counter() - started)
    table = Table("training", f"episodes/s on {CORES} cores, by the clock", "bar")
    table.add_row("the paper's jobs", f"{rate:.1f}", f"{EPISODES_PER_S:g}")
    console.print(table)
    return rate >= EPISODES_PER_S


SCENARIO = """
[[devices]]
count = 10
compute_s = 0.1

[training]
task = "digits"
batch_size = 16
samples = 8000
"""


def inference(console: Console) -> bool:
    """Time of a decision by the mean step of 10 real workers, whose reports are decided upon again here."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Trace.load(real_trace(Path(folder)))
        study = Study(replace(PRESETS["paper"], pretraining=1, episodes=0), Path(folder) / "paper.json", jobs=1)
        study.run()
        policies: dict[str, Policy[Any]] = {"phase (ships)": RLP(), "paper": RLP(str(study.out))}
        step_s = fmean(event.step_s for event, _ in trace.entries if isinstance(event, Report))
        table = Table("view", "decision", "step", "share", "bar")
        good = True
        for name, policy in policies.items():
            decision_s = decision(policy, trace)
            good &= decision_s <= INFERENCE * step_s
            share = f"{100 * decision_s / step_s:.2f} %"
            table.add_row(name, f"{1e6 * decision_s:.0f} us", f"{1e3 * step_s:.1f} ms", share, f"{100 * INFERENCE:g} %")
    console.print(table)
    return good


def real_trace(folder: Path) -> Path:
    """The trace of a job on real workers under the policy that ships."""
    scenario = folder / "ten.toml"
    scenario.write_text(SCENARIO, encoding="utf-8")
    command = [sys.executable, "-m", "polyrhythm", "compare", str(scenario), "--on", "local", "--policies", "rlp"]
    subprocess.run([*command, "--trace", str(folder / "traces")], check=True, stdout=subprocess.DEVNULL)
    (trace,) = (folder / "traces").glob("*.jsonl")
    return trace


def decision(policy: Policy[Any], trace: Trace) -> float:
    """Mean processor time of a decision upon a report, in seconds. A report without a loss is given one."""
    state = policy.init(trace.header.cluster)
    count, started = 0, time.process_time()
    for event, _ in trace.entries:
        if isinstance(event, Report):
            count += 1
            event = event._replace(loss=event.loss or 1 / count)
        state, _ = policy.decide(state, event)
    return (time.process_time() - started) / count


def main() -> int:
    """Run everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=int, default=8, help="held-out jobs of each other family")
    parser.add_argument("--policy", default="rlp", help="spec of the learned policy")
    parser.add_argument("--seed", type=int, default=HELD_OUT_SEED, help="of the first job of each family")
    parser.add_argument("--data", help="folder with the parquet files of Fashion-MNIST")
    parser.add_argument("--episodes", type=int, default=0, help="episodes of the paper's algorithm")
    parser.add_argument("--pretraining", type=int, default=PRETRAINING, help="jobs that come before them")
    parser.add_argument("--keep", help="folder for what the paper's algorithm learns; it goes on from there")
    parser.add_argument("--loss", choices=LOSSES, default="running", help="what the paper's algorithm sees of it")
    parser.add_argument("--only", choices=("gains", "paper", "losses", "speed", "inference"), help="one part")
    arguments = parser.parse_args()
    console = Console(width=200)
    console.print(f"{joblib.cpu_count()} cores")
    parts: dict[str, Callable[[], bool]] = {
        "inference": lambda: inference(console),
        "speed": lambda: speed(console),
        "losses": lambda: losses(console, arguments),
        "paper": lambda: paper(console, arguments),
        "gains": lambda: gains(console, arguments),
    }
    kept = [part() for name, part in parts.items() if arguments.only in (None, name)]
    return 0 if all(kept) else 1


if __name__ == "__main__":
    sys.exit(main())
