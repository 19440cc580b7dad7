"""``polyrhythm search-cost``: what a search for the switch point would have cost, from a log of runs."""

import math
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyrhythm import __version__
from polyrhythm.cli.options import given_path
from polyrhythm.cli.outputs import check_apart, check_picture, json_document, write_files
from polyrhythm.core.arguments import MOST_SEED
from polyrhythm.errors import UsageError
from polyrhythm.lines import say
from polyrhythm.search.log import EXCLUDED, RunLog, read_log
from polyrhythm.telemetry.files import check_writable

if TYPE_CHECKING:
    from polyrhythm.search.cost import Candidate, Case, CostFigures


class DrawKind(StrEnum):
    WITHOUT = "without"
    WITH = "with"
    BOTH = "both"


REPLACEMENT = {DrawKind.WITHOUT: (False,), DrawKind.WITH: (True,), DrawKind.BOTH: (False, True)}
HEADS = (
    *("job", "BSP runs", "runs per candidate", "cost", "amortised over", "effective", "success"),
    *("too early", "too late", "time regret", "accuracy regret"),
)


def search_cost(
    ctx: typer.Context,
    runs: Annotated[Path, typer.Argument(metavar="RUNS.csv", parser=given_path, help="RunLog, one run a row.")],
    setup: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Only this setup; may be repeated.")] = None,
    candidates: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="BSP percents of the log to try; 50,25,12.5 ... if not given.")
    ] = None,
    beta: Annotated[float, typer.Option(metavar="B", min=0, max=1, help="Margin of accuracy, a share of 1.")] = 0.01,
    most_runs: Annotated[
        int, typer.Option("--runs", metavar="N", min=1, max=50, help="Most runs a setting makes.")
    ] = 5,
    draw: Annotated[DrawKind, typer.Option(help="Draw runs with replacement, without, or both.")] = DrawKind.BOTH,
    exclude: Annotated[
        str, typer.Option(metavar="REGEX", help="Leave out rows whose notes match; '' keeps all.")
    ] = EXCLUDED,
    draws: Annotated[int, typer.Option(metavar="N", min=100, help="Samples where draws cannot be listed.")] = 100_000,
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=MOST_SEED, help="Seed of these samples.")] = 0,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", parser=given_path, help="Write the figures.")
    ] = None,
    figure: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.svg", parser=given_path, help="Draw cost against success, as in the paper's Fig. 16."
        ),
    ] = None,
) -> None:
    """Analyse what searching the switch point costs, and how often it succeeds, from a log of finished runs."""
    from polyrhythm.search.cost import figures_of, settings

    check_apart({"RUNS.csv": runs, "--json": json, "--figure": figure})
    for option, path in (("--json", json), ("--figure", figure)):
        if path is not None:
            check_writable(option, path)
    if figure is not None:
        check_picture("--figure", figure)
    log = read_log(runs, exclude)
    cases = cases_of(log, setup, percents_of(candidates), beta)
    rows = {
        case.name: [figures_of(case, s, again, draws, seed) for again in REPLACEMENT[draw] for s in settings(most_runs)]
        for case in cases
    }
    write_files((json, lambda: as_json(ctx.obj, log, cases, rows)), (figure, lambda: as_figure(cases, rows)))
    if log.excluded:
        typer.echo(f"{log.excluded} rows left out (--exclude {exclude!r})")
    for case in cases:
        print_case(case, rows[case.name])


def percents_of(text: str | None) -> list[float] | None:
    """Candidates from the largest down.

    >>> percents_of("25,50%")
    [50.0, 25.0]
    """
    if text is None:
        return None
    try:
        percents = sorted({float(part.strip().removesuffix("%")) for part in text.split(",")}, reverse=True)
    except ValueError:
        percents = []
    if not percents or not all(0 <= percent < 100 for percent in percents):
        raise UsageError(f"--candidates must be percents from 0 to below 100 but got {text!r}; write 50,25,12.5")
    return percents


def cases_of(log: RunLog, wanted: Sequence[str] | None, percents: list[float] | None, beta: float) -> "list[Case]":
    """The setups that were asked for; of all setups those that can be analysed, with a line for each of the others."""
    from polyrhythm.search.cost import case_of

    for name in wanted or ():
        if name not in log.setups:
            raise UsageError(f"--setup {name!r} is not in the log; it has {', '.join(sorted(log.setups))}")
    if wanted:
        return [case_of(name, log.setups[name], percents, beta) for name in dict.fromkeys(wanted)]
    cases: list[Case] = []
    troubles: list[UsageError] = []
    for name, pools in log.setups.items():
        try:
            cases.append(case_of(name, pools, percents, beta))
        except UsageError as error:
            troubles.append(error)
    if not cases:
        raise troubles[0]
    for trouble in troubles:
        say(f"left out: {trouble}")
    return cases


def print_case(case: "Case", rows: "Sequence[CostFigures]") -> None:
    from polyrhythm.cli.terminal import print_figures

    bsp = case.bsp
    typer.echo(f"\n{case.name}: switch at {case.answer:g} %")
    typer.echo(
        f"  bsp      {len(bsp)} runs, accuracy {bsp.accuracy:.4f}, {bsp.time_s:.1f} s; pass mark less {case.beta:g}"
    )
    for candidate in case.candidates:
        typer.echo(f"  {describe(case, candidate)}")
    for replacement in (False, True):
        chosen = [row for row in rows if row.replacement is replacement]
        if chosen:
            typer.echo(f"\nruns drawn {'with' if replacement else 'without'} replacement")
            print_figures(HEADS, map(cells, chosen))
    if any(row.whole_pools for row in rows):
        typer.echo("* every draw takes all logged runs, so the answer is theirs by construction")
    if any(row.std_error for row in rows):
        typer.echo("± standard error of sampled draws; figures without it are exact")


def describe(case: "Case", candidate: "Candidate") -> str:
    name = f"{candidate.percent:g} %"
    if not candidate.pool:
        return f"{name:<8} no runs: fails at no cost"
    logged = "" if candidate.logged_percent == candidate.percent else f" logged as {candidate.logged_percent:g} %"
    pool, verdict = candidate.pool, "passes" if candidate.passes else "fails"
    return (
        f"{name:<8} {len(pool)} runs{logged}, accuracy {pool.accuracy:.4f}, {pool.time_s:.1f} s "
        f"({pool.time_s / case.bsp.time_s:.3f} of bsp): {verdict}"
    )


def cells(row: "CostFigures") -> list[str]:
    recurrences = "never" if math.isinf(row.amortised) else f"{row.amortised:.2f}"
    error = f" ± {100 * row.std_error:.1f}" if row.std_error else ""
    return [
        "recurring" if row.setting.recurring else "new",
        str(row.setting.bsp_runs),
        str(row.setting.runs),
        f"{row.cost:.2f}x",
        recurrences,
        f"{row.effective:.2f}x",
        f"{100 * row.success:.1f}{error} %{'*' if row.whole_pools else ''}",
        f"{100 * row.too_early:.1f} %",
        f"{100 * row.too_late:.1f} %",
        f"{row.time_regret:.3f}x",
        f"{row.accuracy_regret:.4f}",
    ]


def as_json(command: str, log: RunLog, cases: "Sequence[Case]", rows: "dict[str, list[CostFigures]]") -> bytes:
    """Everything as numbers; what is not finite is null."""
    value = {
        "command": command,
        "version": __version__,
        "excluded_rows": log.excluded,
        "setups": [
            {
                "name": case.name,
                "beta": case.beta,
                "target_accuracy": case.bsp.accuracy,
                "bsp_runs": len(case.bsp),
                "bsp_time_s": case.bsp.time_s,
                "answer_percent": case.answer,
                "candidates": [candidate_json(candidate) for candidate in case.candidates],
                "rows": rows[case.name],
            }
            for case in cases
        ],
    }
    return json_document(value)


def candidate_json(candidate: "Candidate") -> dict[str, Any]:
    pool = candidate.pool
    return {
        "percent": candidate.percent,
        "logged_percent": candidate.logged_percent,
        "runs": len(pool),
        "mean_accuracy": pool.accuracy if pool else None,
        "mean_time_s": pool.time_s if pool else None,
        "passes": candidate.passes,
    }


def as_figure(cases: "Sequence[Case]", rows: "dict[str, list[CostFigures]]") -> str:
    """The figure; of runs drawn both ways those without replacement, as in the paper."""
    from polyrhythm.report.picture import svg
    from polyrhythm.report.tradeoff_figure import Point, tradeoff_figure

    panels = []
    for case in cases:
        first = rows[case.name][0].replacement
        chosen = [row for row in rows[case.name] if row.replacement is first]
        points = [
            Point(r.cost, r.success, f"{r.setting.bsp_runs}, {r.setting.runs}", r.setting.recurring) for r in chosen
        ]
        panels.append((f"{case.name}, runs drawn {'with' if first else 'without'} replacement", points))
    return svg(tradeoff_figure(panels), "What a search costs and how often it finds the right switch point")
