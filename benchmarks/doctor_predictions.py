"""What the doctor predicts of policies from one trace under BSP, against what they do on real workers.

Three clusters that no calibration has seen, played by processes on this host that wait where they would compute: five
workers of four speeds, workers that are slow for a while in turns, and links of 100 Mbit/s. Of each the doctor reads
one real run of BSP with one seed; every policy is then run with another seed. Results are kept in a file, and runs that
are in it are not made again: ``doctor_predictions.py [FILE]``; exits with 1 if a bar is missed. For root its processes
run at real-time priority, so that other work of the host counts for nothing.
"""

import json
import sys
from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

from _priority import come_first
from rich.console import Console
from rich.table import Table

from polyrhythm.cli.experiment import Experiment
from polyrhythm.cli.local import run_one
from polyrhythm.cli.outputs import Outputs
from polyrhythm.doctor.evidence import Evidence
from polyrhythm.doctor.outlook import prospects
from polyrhythm.doctor.readers.own_traces import read_own
from polyrhythm.sim import Scenario, load_scenario
from polyrhythm.training.data.tasks import build_task

LARGEST_ERROR, TIE = 0.10, 0.05
KEPT = Path("out/doctor-predictions.json")
TRACED_SEED, OTHER_SEED = 0, 1
POLICIES = ("bsp", "asp", "ssp:3", "local:8", "k-sync:3", "balanced")
CLUSTERS = {
    "four speeds": """
name = "four speeds"
[[devices]]
count = 2
compute_s = 0.10
[[devices]]
compute_s = 0.12
[[devices]]
compute_s = 0.17
[[devices]]
compute_s = 0.22
[compute]
distribution = "log-normal"
deviation = 0.12
""",
    "slow in turns": """
name = "slow in turns"
[[devices]]
count = 4
compute_s = 0.12
[compute]
distribution = "normal"
deviation = 0.08
[[faults.stragglers]]
workers = [1]
start_step = 10
steps = 20
slowdown = 2.0
[[faults.stragglers]]
workers = [3]
start_step = 45
steps = 30
slowdown = 2.0
""",
    "thin links": """
name = "thin links"
[[devices]]
count = 3
compute_s = 0.10
bandwidth_gbps = 0.1
[[devices]]
compute_s = 0.15
bandwidth_gbps = 0.1
[compute]
distribution = "normal"
deviation = 0.1
""",
}
TRAINING = """
[network]
averaging = "ring"
[training]
task = "digits"
model = "{model}"
learning_rate = 0.02
batch_size = 16
epochs = 4
eval_every_samples = 5748
"""


def cluster(name: str, folder: Path) -> Scenario:
    """The scenario of this name, with what is trained."""
    path = folder / f"{name.replace(' ', '-')}.toml"
    model = "wide" if name == "thin links" else "mlp"
    path.write_text(CLUSTERS[name] + TRAINING.format(model=model), encoding="utf-8")
    return load_scenario(str(path))


def real(scenario: Scenario, policy: str, seed: int, traces: Path | None = None) -> float:
    """Samples a second on real workers, without those of gradients that were dropped."""
    assert scenario.training is not None, "each trains"
    experiment = Experiment("benchmark", scenario, [policy], [seed], None, Outputs())
    result = run_one(experiment, build_task(scenario.training), policy, seed, traces, 1.0)
    assert result.status == "ok", result.message
    return result.samples_per_s


def evidence_of(scenario: Scenario, folder: Path) -> Evidence:
    """Of one run under BSP."""
    real(scenario, "bsp", TRACED_SEED, folder)
    return read_own(sorted(folder.glob("*.jsonl")))


def measured(name: str, kept: dict[str, dict[str, float]], file: Path) -> None:
    """Fill in what is missing of a cluster: the prediction first, then one real run after the other."""
    with TemporaryDirectory() as folder:
        scenario = cluster(name, Path(folder))
        if f"{name}, predicted" not in kept:
            found = prospects(evidence_of(scenario, Path(folder)), POLICIES)
            kept[f"{name}, predicted"] = {row.policy: row.samples_per_s for row in found}
            keep(kept, file)
        runs = kept.setdefault(f"{name}, real", {})
        for policy in POLICIES:
            if policy not in runs:
                runs[policy] = real(scenario, policy, OTHER_SEED)
                keep(kept, file)


def keep(kept: dict[str, dict[str, float]], file: Path) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(kept, indent=1), encoding="utf-8")


def misplaced(predicted: dict[str, float], runs: dict[str, float]) -> list[str]:
    """Pairs of policies that differ by more than a tie and are predicted the other way round."""
    return [
        f"{one} and {other}"
        for one, other in combinations(POLICIES, 2)
        if abs(runs[one] / runs[other] - 1) > TIE and (runs[one] > runs[other]) != (predicted[one] > predicted[other])
    ]


def main(file: Path) -> bool:
    """Whether the bars were met."""
    kept: dict[str, dict[str, float]] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    table, met = Table("cluster", "policy", "predicted", "real", f"error (bar {LARGEST_ERROR:.0%})"), True
    for name in CLUSTERS:
        measured(name, kept, file)
        predicted, runs = kept[f"{name}, predicted"], kept[f"{name}, real"]
        for policy in POLICIES:
            error = predicted[policy] / runs[policy] - 1
            met &= abs(error) <= LARGEST_ERROR
            style = None if abs(error) <= LARGEST_ERROR else "red"
            table.add_row(name, policy, f"{predicted[policy]:.1f}", f"{runs[policy]:.1f}", f"{error:+.1%}", style=style)
        wrong = misplaced(predicted, runs)
        met &= not wrong
        table.add_row(name, "order", "", "", f"wrong: {', '.join(wrong)}" if wrong else "right", end_section=True)
    Console(width=120).print(table)
    return met


if __name__ == "__main__":
    come_first()
    sys.exit(not main(Path(sys.argv[1]) if len(sys.argv) > 1 else KEPT))
