"""ESync on real processes of this host, one of them held up 20 times as long as the others, beside SSGD and ASGD."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from polyrhythm.emulation.local import LocalRun, run_local
from polyrhythm.emulation.pace import Emulation
from polyrhythm.policies import parse_policy
from polyrhythm.report.document import DocumentSection, Grid
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.tasks import build_task
from polyrhythm_experiments.reproduce.figures import over_seeds, percent, plain, ratio
from polyrhythm_experiments.reproduce.lab import Lab
from polyrhythm_experiments.reproduce.page import ClaimRow, findings

FAST_S, SLOWDOWN, FAST = 0.015, 20, 3
"""A step of one of the fast workers, how much longer that of the slow one takes, and how many are fast."""

MESSAGE_BYTES = 1.2e6
BYTES_PER_S = 60e6
"""Of each worker's link: a message of the model's 1.2 MB takes 1.4 fast steps, where the paper's would take 1.2."""

POLICIES: dict[str, tuple[str, int | None]] = {"SSGD": ("bsp", 120), "ASGD": ("asp", None), "ESync": ("esync", None)}
"""Policy, and samples of its only epoch; SSGD needs fewer to show its pace. None are all digits."""


@dataclass(frozen=True)
class LiveESync:
    """One job: samples a second, and the share of its time that the slow worker and each fast one computes."""

    samples_per_s: float
    slow: float
    fast: tuple[float, ...]


def measure(policy: str, samples: int | None, seed: int) -> LiveESync:
    config = TrainingConfig(
        task="digits",
        model="wide",
        epochs=1,
        train_samples=samples,
        batch_size=1,
        learning_rate=0.01,
        lr_convention="same",
    )
    delays = [FAST_S * SLOWDOWN, *[FAST_S] * FAST]
    emulations = [Emulation([delay_s], bytes_per_s=BYTES_PER_S) for delay_s in delays]
    result = run_local(LocalRun("live esync", parse_policy(policy), config, seed, emulations), build_task(config))
    slow, *fast = (result.compute_fraction_by_worker[worker] for worker in range(FAST + 1))
    return LiveESync(result.samples_per_s, slow, tuple(fast))


def lives(lab: Lab) -> dict[str, list[LiveESync]]:
    place = [FAST_S, SLOWDOWN, FAST, BYTES_PER_S]
    return {
        name: lab.live("live-esync", [policy, samples, *place], partial(measure, policy, samples), LiveESync)
        for name, (policy, samples) in POLICIES.items()
    }


def live_section(live: Mapping[str, list[LiveESync]], why_ssgd: str = "", why_asgd: str = "") -> DocumentSection:
    """Figures 4 and 5 again, on processes."""
    speeds = {name: [one.samples_per_s for one in jobs] for name, jobs in live.items()}
    rows = [
        ClaimRow(
            "samples/s, ESync over SSGD", "section 5, fig. 4", "33x", ratio(speeds["ESync"], speeds["SSGD"]), why_ssgd
        ),
        ClaimRow(
            "samples/s, ESync over ASGD", "section 5, fig. 4", "3x", ratio(speeds["ESync"], speeds["ASGD"]), why_asgd
        ),
    ]
    cells = [
        [
            name,
            str(over_seeds(speeds[name], plain)),
            str(over_seeds([one.slow for one in jobs], percent)),
            str(over_seeds([min(one.fast) for one in jobs], percent)),
        ]
        for name, jobs in live.items()
    ]
    headings = ("", "samples/s", "computing, slow worker", "computing, the fast worker with the least")
    text = (
        f"Four processes and a coordinator on this host, no simulator: one worker is held up {FAST_S * SLOWDOWN:g} s "
        f"in each step and the others {1000 * FAST_S:g} ms, while they train on the digits. Links carry "
        f"{BYTES_PER_S / 1e6:g} MB/s, so that a message of 1.2 MB takes 1.4 fast steps."
    )
    return findings("Real processes", text, rows, [Grid("Measured live", headings, cells)])
