"""The simulator against real workers of this host, after a calibration: time, order of the policies, staleness.

Four workers are played by processes that are held up for 40 ms a step, 160 ms on the straggler, and real messages go
between them; links of 200 Mbit/s are held down by the kernel. The durations that a run is held against have other
seeds than those that were measured. Give a folder for the reports: calibration.py [FOLDER]. Exits with 1 if a bar is
missed.
"""

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from polyrhythm.cli.calibrate import Wanted, as_json, compared, investigate
from polyrhythm.report.agreement import agreements, figure, misplaced
from polyrhythm.sim import load_scenario, sweep

LARGEST_ERROR = 0.10
POLICIES = ("bsp", "asp", "ssp:3", "local:8")
SLOW_STEPS = {"devices.0.compute_s": "0.04", "devices.1.compute_s": "0.16"}
EVEN = SLOW_STEPS | {"devices.1.compute_s": "0.04"}
THIN = {"devices.0.bandwidth_gbps": "0.2", "devices.1.bandwidth_gbps": "0.2", "network.server_gbps": "none"}
SCENARIOS = {
    "uniform": EVEN | {"training.epochs": "6"},
    "one straggler": SLOW_STEPS | {"training.epochs": "3"},
    "thin link": EVEN | THIN | {"network.message_bytes": "1228840", "training.model": "wide", "training.epochs": "3"},
}
"""Changes of the built-in scenario local-straggler."""


def measure(name: str, table: Table, folder: Path | None) -> bool:
    """Both drivers on one scenario, as rows of the table; whether the bars are met."""
    scenario = load_scenario("local-straggler", {"name": name, **SCENARIOS[name]})
    findings, _ = investigate(Wanted(scenario, POLICIES, range(1), epochs=2.0, time_scale=1.0))
    if folder:
        (folder / f"{name.replace(' ', '-')}.json").write_bytes(as_json(f"benchmarks/calibration.py: {name}", findings))
    as_stated = {pair.policy: pair for pair in agreements(findings.real, sweep(scenario, POLICIES, range(1), jobs=1))}
    pairs = compared(findings)
    for pair in pairs:
        stated = f"{as_stated[pair.policy].error:+.1%}"
        staleness = f"{figure(pair.real_staleness)} / {figure(pair.simulated_staleness)}", figure(pair.apart)
        times = f"{pair.real_s:.2f}", f"{pair.simulated_s:.2f}", f"{pair.error:+.1%}"
        style = None if abs(pair.error) <= LARGEST_ERROR else "red"
        table.add_row(name, pair.policy, *times, stated, *staleness, style=style)
    wrong = misplaced(pairs)
    table.add_row(name, "order", "", "", f"wrong: {wrong}" if wrong else "right", "", "", "", end_section=True)
    whole = len(pairs) == len(POLICIES)
    return whole and not wrong and all(abs(pair.error) <= LARGEST_ERROR for pair in pairs)


def main(folder: Path | None) -> bool:
    """Whether the bars were met in every scenario."""
    heads = "scenario", "policy", "real s", "simulated s", f"error (bar {LARGEST_ERROR:.0%})", "not calibrated"
    table = Table(*heads, "staleness real / sim.", "apart")
    met = [measure(name, table, folder) for name in SCENARIOS]
    Console(width=120).print(table)
    return all(met)


if __name__ == "__main__":
    sys.exit(0 if main(Path(sys.argv[1]) if len(sys.argv) > 1 else None) else 1)
