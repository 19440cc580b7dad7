"""Results as a comparison gives them, without running one."""

import math

from polyrhythm.telemetry.result import EvalPoint, RunResult


def result(policy: str = "bsp", seed: int = 0, **changes: object) -> RunResult:
    """A result with plausible figures."""
    curve = [EvalPoint(x * 10.0, x * 100, x * 5, 1 - 0.9 * math.exp(-x) + 0.001 * seed, math.exp(-x)) for x in range(6)]
    values: dict[str, object] = {
        "scenario": "uniform",
        "policy": policy,
        "seed": seed,
        "workers": 3,
        "batch_size": 16,
        "learning_rate": 0.1,
        "lr_convention": "linear",
        "duration_s": 50.0,
        "samples": 500,
        "samples_per_s": 10.0,
        "updates": 25,
        "target_accuracy": 0.9,
        "time_to_target_s": 30.0 + seed,
        "final_accuracy": 0.95 + 0.01 * seed,
        "idle_fraction": 0.25,
        "staleness_mean": 1.5,
        "staleness_max": 3,
        "staleness_counts": {0: 5, 3: 5},
        "bytes_pushed": 600,
        "bytes_pulled": 400,
        "bytes_total": 1000,
        "curve": curve,
    }
    return RunResult(**{**values, **changes})  # type: ignore[arg-type]
