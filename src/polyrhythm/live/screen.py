"""The job as a picture of text: what `polyrhythm top` shows, in as many lines as there are."""

from rich.console import Group
from rich.table import Table
from rich.text import Text

from polyrhythm.live.model import JobView, WorkerView, policy_words
from polyrhythm.telemetry.numbers import duration, figure, size

KEYS = "s switch  d drain a worker  k kill a worker  q quit"

HEAD_LINES = 5
"""Lines above the table, and the heading of the table."""

BAR = 10
"""Columns of a worker's bar."""

COLUMNS = {"rank": 4, "does": 10, "step": 7, "samples/s": 9, "compute": 7, "wait": 7, "time": BAR, "straggler": None}
"""Of the table, and how wide each is at least; what is said of a straggler gets the rest."""


def screen(view: JobView, height: int = 24, notice: str = "") -> Group:
    """The latest of the job."""
    events = min(4, max(0, height - HEAD_LINES - 3 - len(view.workers)), len(view.events))
    room = max(1, height - HEAD_LINES - 2 - max(events, 1))
    return Group(*head(view), workers(view, room), *latest(view, events), Text(notice or KEYS, style="dim"))


def head(view: JobView) -> list[Text]:
    state = f"ended: {view.ended}" if view.ended else f"running for {duration(view.time_s)}"
    dropped = sum(view.dropped.values())
    return [
        line(f"job {view.job}  policy {policy_words(view)}  phase {view.phase}  {state}", "bold"),
        line(f"{progress(view)}  {figure(view.samples_per_s)} samples/s  {reported(view)}  {drift(view)}"),
        line(
            f"samples {view.samples:,}, skipped {view.skipped}  gradients {view.applied:,}, dropped {dropped}  "
            f"sent {size(sum(worker.sent for worker in view.workers))}"
        ),
        line(
            f"{view.advice.verdict} {view.advice.next_step}" if view.advice else "Too little to tell what stands out."
        ),
    ]


def reported(view: JobView) -> str:
    """The loss, and what else the script reports."""
    return "  ".join(
        [f"loss {figure(view.loss)}", *(f"{name} {figure(value)}" for name, value in view.figures.items())]
    )


def line(text: str, style: str = "") -> Text:
    return Text(text, style=style, no_wrap=True, overflow="ellipsis")


def workers(view: JobView, room: int) -> Table:
    """One line a worker; where there are too many, those that are late and then the first."""
    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0), expand=False)
    for heading, least in COLUMNS.items():
        right = heading in ("rank", "step", "samples/s")
        table.add_column(heading, justify="right" if right else "left", no_wrap=True, min_width=least)
    shown = sorted(view.workers, key=lambda worker: (worker.late is None, worker.rank))[:room]
    for worker in sorted(shown, key=lambda worker: worker.rank):
        table.add_row(*row(worker), style="red" if worker.late else "")
    if len(shown) < len(view.workers):
        table.caption = f"and {len(view.workers) - len(shown)} more"
    return table


def row(worker: WorkerView) -> tuple[Text, ...]:
    cells = (
        str(worker.rank),
        worker.activity,
        f"{worker.steps:,}",
        figure(worker.samples_per_s),
        duration(worker.compute_s),
        duration(worker.wait_s),
        bar(worker),
        straggler(worker),
    )
    return tuple(map(Text, cells))


def bar(worker: WorkerView) -> str:
    """What a step is made of: # computes, = transfers, . waits."""
    parts = worker.compute_s, worker.transfer_s, worker.wait_s
    total = sum(parts)
    if not total:
        return " " * BAR
    compute, transfer = (round(BAR * part / total) for part in parts[:2])
    return ("#" * compute + "=" * transfer).ljust(BAR, ".")[:BAR]


def latest(view: JobView, count: int) -> list[Text]:
    shown = view.events[-count:] if count else ()
    return [line(f"{duration(round(event.time_s, 2)):>11}  {event.kind:<10} {event.text}", "dim") for event in shown]


def drift(view: JobView) -> str:
    """What tells how far workers are apart, of this policy."""
    return f"LSSR {figure(view.lssr)}" if view.lssr is not None else f"staleness {figure(view.staleness)}"


def progress(view: JobView) -> str:
    if view.epoch < 0:
        return "epoch not begun"
    planned = f" of {view.epochs}" if view.epochs else ""
    left = f", {duration(view.remaining_s)} left" if view.remaining_s is not None else ""
    return f"epoch {view.epoch + 1}{planned}, {view.epoch_share:.0%}{left}"


def straggler(worker: WorkerView) -> str:
    if not worker.straggler:
        return ""
    return f"{worker.straggler}, {worker.late:.1f}x" if worker.late else f"{worker.straggler}, on time now"
