"""The sentences of an answer."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from polyrhythm.doctor.culprits import Culprit
from polyrhythm.doctor.evidence import Evidence, StepPart
from polyrhythm.telemetry.numbers import share

if TYPE_CHECKING:
    from polyrhythm.doctor.outlook import Prospect

MUCH = 0.2
"""Share of the job from which the exchange itself is worth a word."""

REMEDIES: dict[tuple[StepPart, bool], str] = {
    ("computing", True): (
        "Look at what else runs on {host}, at its clock rates and its temperature; a machine that is slower by itself "
        "wants a smaller share of each batch"
    ),
    ("computing", False): "Find what {host} does in the late steps: another job, a checkpoint, a log, throttling",
    ("data loading", True): (
        "Give the loader of {rank} more processes (num_workers) or nearer data: it waits for samples in every step"
    ),
    ("data loading", False): "Find what {rank} reads in the late steps: a cold file, a shard far away, a slow disk",
    ("transfer", True): "Look at the link of {host}: its rate, its errors, what else uses it",
    ("transfer", False): "Look at what else uses the link of {host} now and then",
    ("link", True): "Look at the link of {host}: its rate, its errors, its cable, what else uses it",
    ("link", False): "Look at what else uses the link of {host} now and then",
    ("pause", True): "Find what stops the interpreter of {rank}: gc.freeze() after the set-up, fewer small objects",
    ("pause", False): (
        "Find what stops {rank} now and then: garbage collection (gc.freeze() after the set-up), a checkpoint, a log, "
        "another process on its core"
    ),
}
"""By part, and whether it is persistent."""


def named(rank: int, host: str) -> str:
    return f"rank {rank} on {host}" if host else f"rank {rank}"


def listed(words: Sequence[str]) -> str:
    """
    >>> listed(["a", "b", "c"])
    'a, b and c'
    """
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def under(evidence: Evidence) -> str:
    """The policy of what is told, where it is another than the job's."""
    return " under bsp" if evidence.of_bsp else ""


def verdict(evidence: Evidence, found: Sequence[Culprit]) -> str:
    if not found:
        waiting = float(evidence.waiting_s.mean() / evidence.step_s.mean())
        meeting = float(evidence.exchange_s.mean() / evidence.step_s.mean())
        cost = f"; the exchange itself takes {share(meeting)}" if meeting >= MUCH else ""
        return (
            f"No rank is slow: what they wait for one another, {share(waiting)} of the job, falls on all alike{cost}."
        )
    late, links = [one for one in found if one.peer is None], [one for one in found if one.peer is not None]
    said = " and ".join(filter(None, [late_sentence(late), link_sentence(links)]))
    lost = share(min(1.0, sum(one.lost_share for one in found)))
    costs = "would cost" if evidence.of_bsp else "costs"
    return f"{said[0].upper()}{said[1:]}, which {costs} {lost} of the job{under(evidence)}."


def late_sentence(late: Sequence[Culprit]) -> str:
    if not late:
        return ""
    who = listed([named(one.rank, one.host) for one in late])
    verb = "is" if len(late) == 1 else "are"
    how = " in turns" if late[0].kind == "rotating" else ""
    return f"{who} {verb} slow{how} in {listed(parts(late))}"


def link_sentence(links: Sequence[Culprit]) -> str:
    """Links that all end at one rank are that one's."""
    if not links:
        return ""
    ends = [{(one.rank, one.host), (one.peer or 0, one.peer_host)} for one in links]
    common = sorted(set.intersection(*ends))
    if len(links) > 1 and common:
        return f"the link of {named(*common[0])} is slow"
    verb = "is" if len(links) == 1 else "are"
    return f"the link from {listed([direction(one) for one in links])} {verb} slow"


def direction(one: Culprit) -> str:
    return f"{named(one.rank, one.host)} to {named(one.peer or 0, one.peer_host)}"


def parts(found: Sequence[Culprit]) -> list[str]:
    return list(dict.fromkeys(one.part for one in found))


def why(evidence: Evidence, found: Sequence[Culprit]) -> list[str]:
    return [reason(one, evidence) for one in found]


def reason(one: Culprit, evidence: Evidence) -> str:
    often = "in all steps" if one.late_share >= 1 else f"in {share(one.late_share)} of the steps"
    section = f" ({one.section})" if one.section else ""
    longer = f"{1e3 * one.excess_s:.1f} ms longer than the others then"
    if one.peer is not None:
        longer = f"{1e3 * one.excess_s:.1f} ms a step longer than the others for the same bytes"
    lost = f"{one.lost_s:.2f} s of {evidence.seconds:.2f} s lost ({share(one.lost_share)})"
    who = named(one.rank, one.host) if one.peer is None else direction(one)
    return f"{who}: {one.part}{section}, {one.kind}, {often}; {longer}; {lost}"


def next_step(evidence: Evidence, found: Sequence[Culprit], chosen: "Prospect | None") -> str:
    now = stay(chosen, evidence.of_bsp)
    if not found:
        return now or advice(chosen, evidence.of_bsp)
    first = found[0]
    remedy = REMEDIES[first.part, first.kind == "persistent"]
    text = remedy.format(host=first.host or f"the host of rank {first.rank}", rank=named(first.rank, first.host)) + "."
    return f"{text} {now or 'Until then: ' + advice(chosen, evidence.of_bsp)}".strip()


def stay(chosen: "Prospect | None", of_bsp: bool) -> str:
    if chosen is None:
        return "No policy was compared."
    where = "Bsp would do" if of_bsp else "Stay on bsp"
    return f"{where}: no other policy is worth its price here." if chosen.policy == "bsp" else ""


def advice(chosen: "Prospect | None", of_bsp: bool) -> str:
    assert chosen is not None, "or there would be nothing to advise"
    gain = f"{share(chosen.gain)} more{' than bsp' if of_bsp else ''}"
    return f"polyrhythm run --policy {chosen.policy} would process {gain}{paid(chosen)}."


def paid(chosen: "Prospect") -> str:
    return ", with the gradients of bsp" if chosen.exact else f" ({chosen.price})"
