"""Draws the pictures of the documentation from simulated runs: ``python docs/pictures/make.py``.

The runs train nothing and are deterministic, so equal code gives equal bytes; a test keeps the files up to date.
"""

import tempfile
from pathlib import Path

from polyrhythm.policies import parse_policy
from polyrhythm.report.timeline import Timeline, load_timeline
from polyrhythm.report.timeline_figure import timeline_svg
from polyrhythm.sim import load_scenario, simulate

HERE = Path(__file__).parent
SCENARIO = HERE / "one-straggler.toml"
SLOW_FOR_A_WHILE = HERE / "slow-for-a-while.toml"

SPECS = (
    "bsp",
    "balanced",
    "auto",
    "asp",
    "ssp:2",
    "dssp:1,4",
    "k-sync:3",
    "k-batch-sync:4",
    "k-async:3",
    "k-batch-async:3",
    "backup:1",
    "ringmaster:2",
    "local:4",
    "post-local:h=4,at=0.4",
    "k-group:3",
    "kbandit:2",
    "rlp:only=h",
    "selsync:lssr=0.6",
    "esync",
    "fedavg:c=0.5,e=0.5",
    "diloco:4,overlap=1",
    "switch:bsp@0.4,asp",
    "tuned:asp,batch=16",
)
"""One picture each, in a colour of the first of the palette."""

UNSTEADY = ("greedy:(switch:bsp@0.8,asp),window=1", "elastic:(switch:bsp@0.8,asp),window=1")
"""Pictures of what reacts to a worker that is slow for a while, and fast before and after."""

COMPARED = ("bsp", "ssp:2", "k-sync:3", "asp")
"""The picture of the README."""


def pictures() -> dict[str, str]:
    """File names and SVGs."""
    files = {f"timeline-{parse_policy(spec).name}.svg": timeline_svg([run(spec)], [title(spec)]) for spec in SPECS}
    for spec in UNSTEADY:
        files[f"timeline-{parse_policy(spec).name}.svg"] = timeline_svg([run(spec, SLOW_FOR_A_WHILE)], [title(spec)])
    return files | {"compare.svg": timeline_svg([run(spec) for spec in COMPARED], [title(spec) for spec in COMPARED])}


def run(spec: str, scenario: Path = SCENARIO) -> Timeline:
    """The whole of a run under a policy: 24 mini-batches, or 48 where a worker is slow for a while only."""
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.jsonl"
        simulate(load_scenario(str(scenario)), parse_policy(spec), trace=trace)
        return load_timeline(trace)


def title(spec: str) -> str:
    """The spec and what the policy does."""
    return f"{spec}: {parse_policy(spec).summary}"


if __name__ == "__main__":
    for name, svg in pictures().items():
        (HERE / name).write_text(svg, encoding="utf-8")
