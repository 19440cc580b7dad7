"""What compression saves and costs: bytes of contributions, and accuracy on the digits, of every codec.

Eight workers on the scenario "uniform", five epochs, three seeds, under ASP (gradients are pushed), local SGD and
SelSync (replicas are averaged). Prints a table, and exits with 1 if half precision or eight bits cost more than a point
of accuracy, or a payload has other bytes than its rule says.
"""

import sys
from collections.abc import Iterator
from statistics import fmean

from rich.console import Console
from rich.table import Table

from polyrhythm.sim import load_scenario, sweep
from polyrhythm.telemetry import RunResult
from polyrhythm.training.compression import parse_compression

SPECS = ("none", "fp16", "bf16", "int8", "topk:0.1", "topk:0.01")
NEAR = ("fp16", "bf16", "int8")
"""Codecs whose accuracy has a bar."""
POLICIES = ("asp", "local:8", "selsync:0.1")
SEEDS = (0, 1, 2)
MARGIN = 0.01


def runs(compression: str) -> list[RunResult]:
    """Every policy and seed with one codec."""
    scenario = load_scenario(
        "uniform",
        {
            "training.compression": compression,
            "training.epochs": "5",
            "training.samples": "none",
            "training.learning_rate": "0.02",
            "training.eval_every_samples": "100000",
            "network.message_bytes": "1e6",
        },
    )
    return sweep(scenario, POLICIES, SEEDS)


def mean(results: list[RunResult], policy: str) -> tuple[float, float]:
    """Final accuracy, and bytes pushed for each step that a worker made."""
    own = [result for result in results if result.policy == policy]
    return fmean(result.final_accuracy or 0.0 for result in own), fmean(r.bytes_pushed / r.updates for r in own)


def rows() -> Iterator[tuple[str, str, float, float, float, bool]]:
    """Codec, policy, accuracy, bytes relative to float32 measured and by the spec, and whether the bars are met."""
    plain = runs("none")
    for spec in SPECS:
        results = plain if spec == "none" else runs(spec)
        for policy in POLICIES:
            accuracy, pushed = mean(results, policy)
            base, full = mean(plain, policy)
            share, stated = pushed / full, parse_compression(spec).ratio
            met = abs(share - stated) < 1e-3 * stated and (spec not in NEAR or accuracy >= base - MARGIN)
            yield spec, policy, accuracy, share, stated, met


def main() -> int:
    """1 if a bar is missed."""
    table = Table("compression", "policy", "accuracy", "bytes of a contribution", "by the specification", "")
    failed = False
    for spec, policy, accuracy, share, stated, met in rows():
        failed |= not met
        table.add_row(spec, policy, f"{accuracy:.3f}", f"{share:.4f}", f"{stated:.4f}", "ok" if met else "MISSED")
    Console().print(table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
