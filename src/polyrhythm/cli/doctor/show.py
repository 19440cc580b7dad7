"""An answer of the doctor on the terminal and as a page."""

from polyrhythm.cli.terminal import console, print_figures
from polyrhythm.doctor.diagnosis import DoctorAnswer, WhatIf
from polyrhythm.doctor.outlook import Prospect
from polyrhythm.telemetry.numbers import figure

POLICY_HEADS = ("bought with", "assumed", "")
"""After the figures of the policy."""

CHANGE_HEADS = ("what if", "ms a step", "gain")


def policy_row(row: Prospect, gains_over: str) -> tuple[str, ...]:
    figures = tuple(figure(value, digits=4) for value in (row.samples_per_s, row.low, row.high))
    epoch = "-" if row.epoch_s is None else f"{row.epoch_s:,.1f}"
    gain = f"{row.gain:+.0%}" if row.policy != "bsp" else "-" if gains_over == "bsp" else gains_over
    return (row.policy, *figures, epoch, gain, row.price, row.assumed or "-", "CHOSEN" if row.chosen else "")


def policy_heads(answer: DoctorAnswer) -> tuple[str, ...]:
    gain = "over bsp" if answer.gains_over == "bsp" else "gain"
    return "policy", f"{answer.unit}/s", "least", "most", "s an epoch", gain, *POLICY_HEADS


def policy_rows(answer: DoctorAnswer) -> list[tuple[str, ...]]:
    return [policy_row(row, answer.gains_over) for row in answer.prospects]


def change_row(row: WhatIf) -> tuple[str, ...]:
    return row.change, f"{1e3 * row.step_s:,.2f}", f"{row.gain:+.0%}"


def print_answer(answer: DoctorAnswer) -> None:
    """Verdict, why, next step, table, in this order; what was read comes last."""
    lines = [answer.verdict, *(f"  {line}" for line in answer.why), f"Next: {answer.next_step}"]
    for line in lines:
        console().print(line, markup=False, soft_wrap=True)
    if answer.prospects:
        print_figures(policy_heads(answer), policy_rows(answer))
    if answer.what_ifs:
        print_figures(CHANGE_HEADS, map(change_row, answer.what_ifs))
    for name, value in [*answer.facts.items(), *(("note", note) for note in answer.notes)]:
        console().print(f"{name:<10}  {value}", markup=False, soft_wrap=True)


def as_page(command: str, answer: DoctorAnswer) -> str:
    from polyrhythm.report.document import Document, DocumentSection, Grid, render_document

    grids = [Grid("Policies on this job", policy_heads(answer), policy_rows(answer))] if answer.prospects else []
    parts = [
        DocumentSection("Verdict", answer.verdict),
        DocumentSection("Why", items=[*answer.why, *answer.notes]),
        DocumentSection("Next step", answer.next_step, grids),
    ]
    return render_document(Document("Diagnosis", command, answer.facts, parts))
