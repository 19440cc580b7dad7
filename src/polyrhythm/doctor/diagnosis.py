"""From evidence to an answer: verdict, why, next step, what other policies would gain."""

from collections.abc import Callable, Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from polyrhythm.doctor.costs import cost_by_size
from polyrhythm.doctor.culprits import LEAST_LOST, Culprit, culprits
from polyrhythm.doctor.evidence import Evidence, StepTimes
from polyrhythm.doctor.lateness import STILL, LateRanks
from polyrhythm.doctor.links import slow_links
from polyrhythm.doctor.outlook import TODAY, Prospect, prospects
from polyrhythm.doctor.wording import named, next_step, under, verdict, why
from polyrhythm.telemetry.numbers import share

SETTLING = 2
"""First steps of a job, which are longer than the others: memory is taken, connections are made."""

LEAST_STEPS = 20
"""Steps below which nothing is concluded."""


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
    """The same steps with one thing changed, worked out step by step; nothing is simulated.

    Args:
        change: in words.
        step_s: mean time of a step then.
        gain: in samples a second, as a share.
    """

    change: str
    step_s: float
    gain: float


class DoctorAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The answer.

    Args:
        verdict: one sentence.
        why: what it rests on.
        next_step: what to do.
        enough: whether the evidence was enough to conclude anything.
        culprits: whom the others wait for, the costliest first.
        facts: what was read, by name.
        prospects: policies on this job, as the simulator sees them.
        what_ifs: the same steps with one thing changed.
        notes: what could not be told.
        unit: what the rates of the policies count.
        gains_over: what their gains are over: the job as it is today, or bsp, where the job has another policy.
    """

    verdict: str
    why: list[str]
    next_step: str
    enough: bool
    culprits: list[Culprit] = []
    facts: dict[str, str] = {}
    prospects: list[Prospect] = []
    what_ifs: list[WhatIf] = []
    notes: list[str] = []
    unit: str = "samples"
    gains_over: str = "today"


def diagnose(
    evidence: Evidence, policies: Sequence[str] = (), predict: Callable[..., list[Prospect]] = prospects
) -> DoctorAnswer:
    """The answer for one job."""
    settled = evidence.between(SETTLING, evidence.steps) if evidence.steps > LEAST_STEPS + SETTLING else evidence
    if settled.steps < LEAST_STEPS:
        return too_little(settled, f"{settled.steps} steps of every rank were read, and it takes {LEAST_STEPS}")
    found, seen = blamed(settled)
    if not found and (doubt := suspicion(settled, seen)):
        return too_little(settled, doubt)
    rows = predict(settled, policies)
    chosen = next((row for row in rows if row.chosen), None)
    return DoctorAnswer(
        verdict=verdict(settled, found),
        why=why(settled, found),
        next_step=next_step(settled, found, chosen),
        enough=True,
        culprits=found,
        facts=facts(settled, rows),
        prospects=rows,
        what_ifs=what_ifs(settled, found),
        notes=list(settled.notes),
        unit="samples" if settled.batch_size else "batches",
        gains_over="bsp" if settled.of_bsp else "today",
    )


def blamed(evidence: Evidence) -> tuple[list[Culprit], LateRanks]:
    """Slow ranks and slow links, the costliest first, and what the ranks were judged by."""
    late, seen = culprits(evidence)
    return sorted([*late, *slow_links(evidence)], key=lambda one: -one.lost_s), seen


def too_little(evidence: Evidence, reason: str) -> DoctorAnswer:
    return DoctorAnswer(
        verdict=f"Not enough evidence: {reason}.",
        why=[],
        next_step="Let the job run longer under the same watch, then ask again.",
        enough=False,
        facts=facts(evidence, []),
        notes=list(evidence.notes),
    )


def suspicion(evidence: Evidence, seen: LateRanks) -> str:
    """Why one rank is suspected and not accused; empty if nobody is, or it would cost nothing."""
    if seen.suspect is None:
        return ""
    flags, own_s = seen.late[seen.suspect], evidence.own_s
    others = np.delete(own_s, seen.suspect, axis=0).max(axis=0)
    lost_s = float(np.maximum(0.0, own_s[seen.suspect] - others)[flags].sum())
    if lost_s < LEAST_LOST * evidence.seconds:
        return ""
    times = int((flags & ~np.pad(flags, (1, 0))[:-1]).sum())
    rank = named(evidence.ranks[seen.suspect], evidence.host(seen.suspect))
    doubt = (
        f"it takes {seen.needed} times to tell that from chance"
        if times < seen.needed
        else "others were late nearly as often"
    )
    cost = f"{'would have cost' if evidence.of_bsp else 'cost'} {share(lost_s / evidence.seconds)} of the job"
    return f"{rank} was late {times} times, which {cost}{under(evidence)}, and {doubt}"


def what_ifs(evidence: Evidence, found: Sequence[Culprit]) -> list[WhatIf]:
    own_s, exchange_s = evidence.own_s, evidence.exchange_s
    now_s = float((own_s.max(axis=0) + exchange_s).mean())
    ranks = len(own_s)
    slowest = evidence.ranks.index(found[0].rank) if found else int(own_s.mean(axis=1).argmax())
    # With a rank its slow links go.
    linked = sum(
        one.lost_share for one in found if evidence.ranks[slowest] in (one.rank, one.peer) and one.part == "link"
    )
    without_s = float((np.delete(own_s, slowest, axis=0).max(axis=0) + exchange_s).mean()) - linked * now_s
    less = (ranks - 1) / ranks
    changes = {
        "all ranks at the pace of the middle one": float((np.median(own_s, axis=0) + exchange_s).mean()),
        "batches in shares by speed": float((shared_evenly(own_s) + exchange_s).mean()),
        **link_changes(evidence, found, now_s),
    }
    return [
        WhatIf(change=f"without rank {evidence.ranks[slowest]}", step_s=without_s, gain=less * now_s / without_s - 1),
        *(WhatIf(change=change, step_s=step_s, gain=now_s / step_s - 1) for change, step_s in changes.items()),
    ]


def shared_evenly(own_s: StepTimes) -> NDArray[np.float64]:
    """What each step takes if ranks get samples in proportion to their usual speed, and take as long as they have."""
    speeds = 1 / np.maximum(np.median(own_s, axis=1), STILL)
    return np.asarray((own_s * (len(own_s) * speeds / speeds.sum())[:, None]).max(axis=0))


def link_changes(evidence: Evidence, found: Sequence[Culprit], now_s: float) -> dict[str, float]:
    """Seconds of a step with other links. Where nobody has seen bytes, all of the exchange counts as bytes."""
    wire_s = cost_by_size(evidence).wire_s
    best = "" if evidence.links else ", at best"
    slow = sum(one.lost_share for one in found if one.part == "link")
    mended = {"the slow link like the others": now_s - min(slow * now_s, wire_s)} if slow else {}
    return mended | {
        f"a link twice as fast{best}": now_s - wire_s / 2,
        f"gradients in bf16{best}": now_s - wire_s / 2,
    }


def facts(evidence: Evidence, rows: Sequence[Prospect]) -> dict[str, str]:
    step_s = evidence.step_s
    said = {
        "read": evidence.source,
        "ranks": f"{len(evidence.ranks)}"
        + (f" on {', '.join(dict.fromkeys(evidence.hosts))}" if evidence.hosts else ""),
        "steps": f"{evidence.steps}, {1e3 * step_s.mean():.2f} ms each",
        "wall clock": f"{evidence.wall_s:.3f} s from the first exchange to the last" if evidence.wall_s else "",
        "of a step": ", ".join(
            f"{name} {share(array.mean() / step_s.mean())}"
            for name, array in [
                *evidence.parts.items(),
                ("waiting", evidence.waiting_s),
                ("exchange", evidence.communication_s),
            ]
            if array.any()
        ),
    }
    said = {name: text for name, text in said.items() if text}
    if evidence.overlap is not None:
        said["overlap"] = f"{share(evidence.overlap)} of the exchange is hidden behind the backward pass"
    return said | (rates(evidence, evidence.batch_size, rows) if evidence.batch_size else {})


def rates(evidence: Evidence, batch_size: int, rows: Sequence[Prospect]) -> dict[str, str]:
    """Of the job as it is, if it was measured, and of what the simulator has run, if that is another."""
    said = {}
    if not evidence.synchronous:
        said["today"] = f"{float((batch_size / evidence.step_s.mean(axis=1)).sum()):,.0f} samples/s measured"
    rate = len(evidence.ranks) * batch_size * evidence.steps / evidence.seconds
    name, known = under(evidence).strip() or "today", "worked out" if evidence.of_bsp else "measured"
    simulated = next((row.samples_per_s for row in rows if row.policy == TODAY), None)
    beside = f", {simulated / rate - 1:+.1%} in the simulator" if simulated is not None else ""
    return said | {name: f"{rate:,.0f} samples/s {known}{beside}"}
