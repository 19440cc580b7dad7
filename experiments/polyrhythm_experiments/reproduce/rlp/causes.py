"""Why times differ from the RLP paper's: runs in the paper's setting with one thing changed."""

from polyrhythm.report.document import DocumentSection, Grid
from polyrhythm_experiments.reproduce.page import findings
from polyrhythm_experiments.reproduce.rlp.evaluation import PAPER_DQN, paper_learned
from polyrhythm_experiments.reproduce.rlp.families import ABLATED, OWN, TABLE
from polyrhythm_experiments.reproduce.rlp.results import (
    best,
    departures,
    gradients,
    most_room,
    over_best,
    reached,
    shown,
    validations,
)
from polyrhythm_experiments.reproduce.rlp.trials import LEARNED, ResultsByKey

PAPER_ROOM = 569 / 279
"""ASP's gradients by BSP's in table 1."""
HIGHER = "rate 0.06"
HEADS = (
    "",
    "gradients, BSP",
    "gradients, ASP",
    "room over ASP",
    "best of BSP, ASP, SSP",
    *(f"{shown(spec)} over it" for spec in (*LEARNED, "k-group:{k}")),
)


def why(results: ResultsByKey, family: str, spec: str) -> str:
    """What was measured about the room that staleness leaves, what a higher rate makes of it, and what is learned."""
    fewest, share = most_room(results, family)
    facts = [f"Room over ASP, with {shown(fewest)}'s gradients and no waiting: {share:.2f}x"]
    if family in OWN and HIGHER in results:
        _, more = most_room(results, HIGHER)
        higher = over_best(results, HIGHER, spec).value
        facts[0] += f" (table 1, BSP's: {PAPER_ROOM:.2f}x)"
        facts.append(f"At {HIGHER}, with one hidden layer, the room is {more:.2f}x and this {higher:.2f}x")
    facts.append(f"{shown(spec)} leaves ASP in {departures(results, family, spec)} jobs")
    return ". ".join([*facts, *([learned_so_far()] if spec == PAPER_DQN else [])]) + "."


def learned_so_far() -> str:
    """What the validations of the training of the paper's DQN say."""
    before, *later = [score for _, score in validations(paper_learned())]
    return (
        f"Its training, over ASP on validation jobs: {before:.2f}x after pre-training, then {min(later):.2f}x to "
        f"{max(later):.2f}x, {later[-1]:.2f}x at the end"
    )


def causes(results: ResultsByKey) -> list[DocumentSection]:
    """One section, unless nothing was changed, as in a quick run."""
    changed = [name for name in (*ABLATED, *TABLE) if name in results]
    if not changed:
        return []
    text = (
        "The paper's setting with one hidden layer, and with one thing changed. Room over ASP: how many times faster "
        "than ASP the policy with the fewest gradients would be if nobody ever waited. ASP never waits, so nothing "
        f"that needs as many gradients is faster. In the paper's table 1, BSP's gradients leave {PAPER_ROOM:.2f}x. "
        "An asterisk: a job did not reach its target, and what it did until its limit counts."
    )
    return [findings("One thing changed", text, grids=[Grid("", HEADS, [cells(results, name) for name in changed])])]


def cells(results: ResultsByKey, name: str) -> list[str]:
    fewest, share = most_room(results, name)
    counts = [
        f"{gradients(results, name, spec):,.0f}{'' if reached(results, name, spec) else '*'}" for spec in ("bsp", "asp")
    ]
    ratios = [str(over_best(results, name, spec)) for spec in (*LEARNED, "k-group:{k}")]
    return [name, *counts, f"{share:.2f}x ({shown(fewest)}'s)", shown(best(results, name)), *ratios]
