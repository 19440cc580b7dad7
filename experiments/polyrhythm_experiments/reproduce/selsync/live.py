"""SelSync on real processes of this host whose links are thin, beside BSP and FedAvg."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from polyrhythm.emulation.local import LocalRun, run_local
from polyrhythm.emulation.pace import Emulation
from polyrhythm.policies import parse_policy
from polyrhythm.report.document import DocumentSection, Grid
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.tasks import build_task
from polyrhythm_experiments.reproduce.figures import difference, mean_text, over_seeds, percent, plain, ratio, times
from polyrhythm_experiments.reproduce.lab import Lab
from polyrhythm_experiments.reproduce.page import ClaimRow, findings

STEP_S, WORKERS = 0.03, 4
BYTES_PER_S = 5e6
"""Of each worker's link: an exchange among four of the model's 1.2 MB takes 1.5 * 1.2 / 5 = 0.37 s, 12 steps."""
EXCHANGE_STEPS = 12
EPOCHS = 4
POLICIES = {"BSP": "bsp", "FedAvg (1, 0.25)": "fedavg:1,0.25", "SelSync delta = 0.3": "selsync:0.3"}


@dataclass(frozen=True)
class LiveSelSync:
    """One job: samples a second, the share of steps without an exchange, and what was learned."""

    samples_per_s: float
    lssr: float | None
    accuracy: float | None


def measure(policy: str, epochs: int, seed: int) -> LiveSelSync:
    config = TrainingConfig(
        task="digits",
        model="wide",
        epochs=epochs,
        batch_size=8,
        learning_rate=0.02,
        momentum=0.9,
        lr_convention="same",
    )
    emulations = [Emulation([STEP_S], bytes_per_s=BYTES_PER_S)] * WORKERS
    result = run_local(LocalRun("live selsync", parse_policy(policy), config, seed, emulations), build_task(config))
    return LiveSelSync(result.samples_per_s, result.lssr, result.final_accuracy)


def lives(lab: Lab) -> dict[str, list[LiveSelSync]]:
    place = [STEP_S, WORKERS, BYTES_PER_S, EPOCHS]
    return {
        name: lab.live("live-selsync", [policy, *place], partial(measure, policy, EPOCHS), LiveSelSync)
        for name, policy in POLICIES.items()
    }


def most(jobs: list[LiveSelSync]) -> str:
    """What an LSSR allows, if nothing but steps and exchanges took time."""
    bound = over_seeds([None if one.lssr is None else gain(one.lssr) for one in jobs], times)
    shares = over_seeds([one.lssr for one in jobs], plain)
    return (
        f"The LSSR is {mean_text(shares)} here, which allows {mean_text(bound)} if an exchange takes {EXCHANGE_STEPS} "
        "steps and nothing else takes time."
    )


def gain(lssr: float) -> float:
    """BSP's time over that of a run with this LSSR.

    >>> gain(0.0), gain(1.0)
    (1.0, 13.0)
    """
    return (1 + EXCHANGE_STEPS) / (1 + EXCHANGE_STEPS * (1 - lssr))


def live_section(live: Mapping[str, list[LiveSelSync]]) -> DocumentSection:
    """Table 1 again, on processes."""
    speeds = {name: [one.samples_per_s for one in jobs] for name, jobs in live.items()}
    scores = {name: [one.accuracy for one in jobs] for name, jobs in live.items()}
    base, ours = "BSP", "SelSync delta = 0.3"
    faster, better = ratio(speeds[ours], speeds[base]), difference(scores[ours], scores[base])
    rows = [
        ClaimRow("samples/s, SelSync over BSP", "table 1", "2.0x to 6.2x", faster, most(live[ours])),
        ClaimRow("accuracy less BSP's", "table 1", "+0.1 to +1.6 pt", better),
    ]
    cells = [
        [
            name,
            str(over_seeds(speeds[name], plain)),
            str(over_seeds([one.lssr for one in jobs], plain)),
            str(over_seeds(scores[name], percent)),
        ]
        for name, jobs in live.items()
    ]
    text = (
        f"Four processes and a coordinator on this host, no simulator: each step is held up {1000 * STEP_S:g} ms, and "
        f"links carry {BYTES_PER_S / 1e6:g} MB/s, so that an exchange of the model's 1.2 MB takes as long as "
        f"{EXCHANGE_STEPS} steps. {EPOCHS} epochs of the digits, 360 test images."
    )
    return findings("Real processes", text, rows, [Grid("Measured live", ("", "samples/s", "LSSR", "accuracy"), cells)])
