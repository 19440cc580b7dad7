"""A GPT of 10 M parameters on four workers of two hosts: perplexity against time and bytes, by policy and link.

``language_model.py FOLDER --text TRAIN --test TEST`` trains `examples/train_gpt.py` in network namespaces whose links
`tc` limits to 50, 200 and 1000 Mbit/s, and holds the simulator beside every run. Each run that has ended is kept in
FOLDER, and the same command goes on with those that are missing. ``--figure FILE.svg`` draws them, ``--only WAY`` and
``--rate MBIT`` limit what is run. Without FOLDER, or with ``--quick``, a tiny model makes a few steps on made-up words,
which shows that everything works and nothing else. Needs root and iproute2.

Exits with 1 if a step of the simulator is off by more than 10 %, or its bytes are. The simulator knows three short runs
at 1000 Mbit/s, one without exchanges, one of BSP and one of local SGD, and the rates of the links. Each host
has one core of this machine, before all other work.
"""

import argparse
import os
import random
import signal
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import msgspec
from _language_runs import NO_EXCHANGE, Model, Run, Way, kept, run
from _language_simulated import Costs, costs_of, simulated
from rich.console import Console
from rich.table import Table

from polyrhythm.report.palette import look
from polyrhythm.report.picture import svg

MOST_OFF = 0.1
MOST_URGENT = -20
"""Nice value: before all other work, but not at real-time priority, where who computes keeps a core from who sends."""

FIRST = 4
"""Step from which time is taken: before, workers meet and memory is got."""

WAYS = (
    Way("bsp", "bsp"),
    Way("bsp, bf16", "bsp", ("--bf16",)),
    Way("local:16", "local:16"),
    Way("diloco:16", "diloco:16,overlap=12"),
    Way("quorum", "diloco:16,quorum=3"),
    Way("selsync", "selsync:0.01,lssr=0.8"),
    Way("diloco:64", "diloco:64,overlap=32"),
    Way("torchrun", None),
)
RATES_MBIT = (50, 200, 1000)
WHOLE = 33
"""Steps of most runs: the script's first, which belongs to no policy, and two rounds of 16."""

OTHERS = {
    ("torchrun", 50): 9,
    ("torchrun", 200): 13,
    ("torchrun", 1000): 17,
    ("bsp", 50): 11,
    ("bsp", 200): 17,
    ("bsp", 1000): 17,
    ("bsp, bf16", 50): 13,
    ("bsp, bf16", 200): 17,
    ("bsp, bf16", 1000): 17,
    ("selsync", 50): 17,
    ("diloco:64", 50): 101,
    ("diloco:64", 200): 101,
    ("diloco:64", 1000): 101,
}
"""Steps of runs that would take long, and of those that are over before they have exchanged anything."""

LOCAL = 4
CALIBRATION = (
    (Way("no exchange", NO_EXCHANGE), 25),
    (Way(f"local:{LOCAL}", f"local:{LOCAL}"), 25),
    (Way("bsp", "bsp"), 17),
)
CALIBRATED_MBIT = 1000


class Plan(NamedTuple):
    """What is run, and how long."""

    model: Model
    ways: tuple[Way, ...]
    rates_mbit: tuple[int, ...]
    calibration: tuple[tuple[Way, int], ...] = CALIBRATION
    whole: int = 0
    evaluate_every: int = 8

    def steps(self, way: Way, rate_mbit: int) -> int:
        return self.whole or OTHERS.get((way.name, rate_mbit), WHOLE)


class Row(NamedTuple):
    """A run and what the simulator says of it."""

    run: Run
    real: tuple[float, float]
    simulated: tuple[float, float]

    @property
    def off(self) -> tuple[float, float]:
        """Of seconds and bytes, relative to the run; bytes only where there are more than a message here and there."""
        (seconds, sent), (guess_s, guessed) = self.real, self.simulated
        return guess_s / seconds - 1, guessed / sent - 1 if sent > 1e4 else 0.0


def made_up(folder: Path, words: int, seed: int) -> str:
    """A text in which one word suggests the next."""
    draw, path, word = random.Random(seed), folder / f"words-{seed}.txt", 0
    text = []
    for _ in range(words):
        word = (3 * word + draw.choice((1, 2, 5))) % 200
        text.append(f"w{word}")
    path.write_text(" ".join(text), encoding="utf-8")
    return str(path)


def quick(folder: Path) -> Plan:
    flags = ("--vocabulary", "200", "--context", "16", "--width", "32", "--heads", "2", "--layers", "2")
    model = Model(made_up(folder, 20_000, 1), made_up(folder, 3000, 2), 2, flags)
    ways = tuple(way for way in WAYS if way.name == "diloco:16")
    calibration = tuple((way, 17) for way, _ in CALIBRATION)
    return Plan(model, ways, (200,), calibration, whole=33)


def done(folder: Path, name: str, way: Way, rate_mbit: int, steps: int, plan: Plan) -> Run:
    """A run, or what was kept of it."""
    path = folder / f"{name}-{rate_mbit}-{way.name.replace(':', '').replace(', ', '-').replace(' ', '-')}.json"
    if path.exists():
        return kept(path)
    print(f"{name}: {way.name} at {rate_mbit} Mbit/s, {steps} steps", flush=True)
    found = run(way, rate_mbit, steps, plan.model, 2, (*range(1, steps, plan.evaluate_every), steps))
    path.write_bytes(msgspec.json.format(msgspec.json.encode(found), indent=1))
    return found


def rows(folder: Path, plan: Plan) -> list[Row]:
    """All runs that are wanted, each beside the simulator."""
    alone, averaging, gradients = (
        done(folder, "calibration", way, CALIBRATED_MBIT, steps, plan) for way, steps in plan.calibration
    )
    costs = costs_of(alone, averaging, gradients, LOCAL, FIRST)
    found = [
        (way, done(folder, "run", way, rate_mbit, plan.steps(way, rate_mbit), plan))
        for rate_mbit in plan.rates_mbit
        for way in plan.ways
    ]
    return [beside(way, one, costs, plan.model.batch_size) for way, one in found]


def beside(way: Way, one: Run, costs: Costs, batch_size: int) -> Row:
    """Up to three steps before the end, where what is under way is awaited."""
    last = max(mark.step for mark in one.marks if mark.step <= one.steps - 3)
    return Row(one, one.between(FIRST, last), simulated(way, one, costs, batch_size, FIRST, last))


def show(found: list[Row]) -> bool:
    """Print everything; whether the simulator is near enough."""
    headings = (
        "Mbit/s",
        "way",
        "steps",
        "s a step",
        "simulated",
        "off",
        "MB a step",
        "simulated",
        "perplexity",
        "after",
    )
    table, good = Table(*headings), True
    for row in found:
        near = max(map(abs, row.off)) <= MOST_OFF
        good &= near
        (seconds, sent), (guess_s, guessed) = row.real, row.simulated
        at, perplexity = row.run.perplexities[-1]
        cells = (f"{row.run.rate_mbit:g}", row.run.way, str(row.run.steps), f"{seconds:.3f}", f"{guess_s:.3f}")
        table.add_row(
            *cells,
            f"{row.off[0]:+.1%}",
            f"{sent / 1e6:.2f}",
            f"{guessed / 1e6:.2f}",
            f"{perplexity:.0f}",
            f"{at} steps, {row.run.marks[-1].seconds:.0f} s",
            style=None if near else "red",
        )
    Console(width=130).print(table)
    return good


def draw(found: list[Row], path: Path) -> None:
    """Perplexity against time, one plot for each rate."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    rates = sorted({row.run.rate_mbit for row in found})
    titles = [f"{rate:g} Mbit/s" for rate in rates]
    figure = make_subplots(len(rates), 1, subplot_titles=titles, vertical_spacing=0.12)
    names = [way.name for way in WAYS]
    for row in found:
        seconds = {mark.step: mark.seconds for mark in row.run.marks}
        points = [(seconds[at], value) for at, value in row.run.perplexities if at in seconds]
        style, number = look(names.index(row.run.way)), rates.index(row.run.rate_mbit) + 1
        line = {"color": style.colour, "dash": style.dash}
        xs, ys = zip(*points, strict=True) if points else ((), ())
        figure.add_trace(go.Scatter(x=xs, y=ys, name=row.run.way, mode="lines", line=line), number, 1)
    figure.update_xaxes(title="seconds", rangemode="tozero")
    figure.update_yaxes(title="perplexity", type="log")
    figure.update_layout(height=300 * len(rates))
    path.write_text(svg(figure, "Perplexity of a GPT of 10 M parameters against seconds, by link and policy"))


def main(arguments: list[str]) -> bool:
    """Whether the simulator was near enough; a tiny model is not measured."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, help="where runs are kept")
    parser.add_argument("--text", help="what is learned from")
    parser.add_argument("--test", help="what it is judged by")
    parser.add_argument("--only", action="append", choices=[way.name for way in WAYS], help="all by default")
    parser.add_argument("--rate", action="append", type=int, choices=RATES_MBIT, help="in Mbit/s; all by default")
    parser.add_argument("--figure", type=Path, metavar="FILE.svg")
    parser.add_argument("--quick", action="store_true", help="a tiny model and few steps")
    parser.add_argument("--whole", type=int, metavar="STEPS", help="steps of every run, in place of the table's")
    chosen = parser.parse_args(arguments)
    with TemporaryDirectory() as temporary:
        folder = chosen.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        tiny = chosen.quick or chosen.folder is None
        if not tiny and not (chosen.text and chosen.test):
            parser.error("--text and --test are missing: two texts, such as WikiText-2's")
        os.setpriority(os.PRIO_PROCESS, 0, MOST_URGENT)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended; the same command goes on with what is missing"))
        if tiny:
            plan = quick(Path(temporary))
        else:
            ways = tuple(way for way in WAYS if chosen.only is None or way.name in chosen.only)
            rates = tuple(chosen.rate or RATES_MBIT)
            plan = Plan(Model(chosen.text, chosen.test, 4), ways, rates, whole=chosen.whole or 0)
        found = rows(folder, plan)
    good = show(found)
    if chosen.figure:
        draw(found, chosen.figure)
    return good or tiny


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
