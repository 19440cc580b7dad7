"""Figure 15: policies that watch for stragglers at the paper's switch point, and what their options bring."""

import msgspec

from polyrhythm.report.document import DocumentSection, Grid
from polyrhythm.sim import Faults, Scenario
from polyrhythm_experiments.reproduce.figures import mean_text
from polyrhythm_experiments.reproduce.lab import Lab, Results, Trial
from polyrhythm_experiments.reproduce.page import ClaimRow, findings
from polyrhythm_experiments.reproduce.sync_switch.accuracy import less
from polyrhythm_experiments.reproduce.sync_switch.times import faster
from polyrhythm_experiments.reproduce.sync_switch.trials import (
    CHOSEN,
    GENTLE_SCENES,
    MESSAGES,
    SCENES,
    SETUPS,
    STRAGGLERS,
    SWITCH_COST_S,
    TRAINED,
    scenario_of,
    timed,
    with_stragglers,
)

OPTIONS = {
    "elastic, probes dropped": "elastic:({}),probes=drop",
    "elastic, back when the share is served": "elastic:({}),back=served",
    "elastic, floor 0.1": "elastic:({}),floor=0.1",
    "elastic, sliding windows, probes dropped": "elastic:({}),sliding=true,probes=drop",
    "elastic to the letter": "elastic:({}),detector=sigma,sliding=true,back=served",
    "greedy": "greedy:({})",
}
"""What is tried in times alone beside what is trained."""
NOBODY = "without stragglers"


def straggler_trials(lab: Lab) -> dict[str, Trial]:
    """Times alone."""
    plain = timed(scenario_of(lab, SETUPS[1]))
    found: dict[str, Trial] = {}
    for scene in SCENES:
        scenario = with_stragglers(plain, scene)
        found[f"{scene}/{NOBODY}"] = Trial(msgspec.structs.replace(scenario, faults=Faults()), CHOSEN)
        found |= of_scene(scene, scenario)
    return found


def of_scene(scene: str, scenario: Scenario) -> dict[str, Trial]:
    specs = {name: spec for name, spec in OPTIONS.items() if name not in TRAINED[scene]}
    found = {f"{scene}/{name}": Trial(scenario, spec.format(CHOSEN)) for name, spec in specs.items()}
    free = msgspec.structs.replace(scenario, switch_cost_s=0.0)
    found |= {f"{scene}/free/{name}": Trial(free, STRAGGLERS[name].format(CHOSEN)) for name in ("agnostic", "greedy")}
    bare = unscaled(scenario)
    return found | {f"{scene}/unscaled/{name}": Trial(bare, STRAGGLERS[name].format(CHOSEN)) for name in UNSCALED}


UNSCALED = ("agnostic", "elastic", "elastic, probes dropped")


def unscaled(scenario: Scenario) -> Scenario:
    """Delays as the paper states them, each on one message of ours."""
    scenes = [
        msgspec.structs.replace(each, extra_latency_s=each.extra_latency_s / MESSAGES)
        for each in scenario.faults.random_stragglers
    ]
    return msgspec.structs.replace(scenario, faults=Faults(random_stragglers=scenes))


def stragglers(runs: Results) -> DocumentSection:
    """Claims, and the table of options."""
    rows: list[ClaimRow] = []
    for (scene, name), (speed, lost) in PAPER.items():
        mine, base = runs[f"{scene}/{name}"], runs[f"{scene}/agnostic"]
        rows.append(ClaimRow(f"speed-up of {name}, {scene}", "figure 15", speed, faster(mine, base),
                             note(runs, scene, name)))  # fmt: skip
        if name in TRAINED[scene]:
            what = f"accuracy of {name} less agnostic, {scene}"
            rows.append(ClaimRow(what, "figure 15", lost, less(mine, base), accuracy_note(runs, scene)))
    rows += [gentle_row(runs, scene, name) for scene, names in GENTLE_SCENES.items() for name in names[1:]]
    return findings("Stragglers: figure 15", TEXT, rows, [options(runs)])


def gentle_row(runs: Results, scene: str, name: str) -> ClaimRow:
    """The accuracy where a switch at the paper's point comes close to BSP."""
    lost = less(runs[f"half/{scene}/{name}"], runs[f"half/{scene}/agnostic"])
    plain = mean_text(less(runs[f"half/{scene}/agnostic"], runs["1/ASP"]))
    why = f"The agnostic policy is here {plain} above ASP alone."
    what = f"accuracy of {name} less agnostic, {scene}, half the rate after the switch"
    return ClaimRow(what, "figure 15", PAPER[scene, name][1], lost, why)


PAPER = {
    ("mild", "greedy"): ("1.02x; logs 1x", "-2 pt; logs -1.35 pt"),
    ("mild", "elastic"): ("1.02x; logs 1x", "about 0; logs +0.2 pt"),
    ("moderate", "elastic"): (
        "1.11x; logs 1.08x without a run whose time has the gap of the switch",
        "about 0; logs +0.5 pt",
    ),
    ("moderate", "elastic, probes dropped"): ("1.11x; logs 1.08x, as above", "about 0"),
}
TEXT = (
    f"Setup 1, switch at {100 * SETUPS[1].chosen:g} %. The paper delays messages by 10 ms (mild: one worker, once) and "
    "30 ms (moderate: two workers, four times each), and does not say for how long or how many messages a step has. "
    "Here a straggler is slow for 30 s of the 129 s that BSP has, and a delay counts "
    f"{MESSAGES:g} times, with which the moderate scene costs the agnostic policy what it costs in the logs: 7.4 %. "
    f"A switch costs {SWITCH_COST_S:g} s, the paper's 36 s scaled to this job."
)


def note(runs: Results, scene: str, name: str) -> str:
    """What bounds the gain, and what the policy brings with another option."""
    base = runs[f"{scene}/agnostic"]
    bound = mean_text(faster(runs[f"{scene}/{NOBODY}"], base))
    said = f"Without stragglers the same switch is {bound} as fast"
    if name == "greedy":
        gain = mean_text(faster(runs[f"{scene}/free/greedy"], runs[f"{scene}/free/agnostic"]))
        return f"{said}, greedy {gain} if a switch costs nothing (table by options)."
    other = "elastic" if name != "elastic" else "elastic, probes dropped"
    gain = mean_text(faster(runs[f"{scene}/{other}"], base))
    return f"{said}, {other} {gain} (table by options)."


def accuracy_note(runs: Results, scene: str) -> str:
    plain = mean_text(less(runs[f"{scene}/agnostic"], runs["1/ASP"]))
    return f"The agnostic policy is here {plain} above ASP alone; with half the rate after the switch see below."


def options(runs: Results) -> Grid:
    """Speed-ups over the agnostic policy in both scenes."""
    names = list(dict.fromkeys((NOBODY, "elastic", *OPTIONS)))
    cells = [[name, *(changed_text(runs, scene, name) for scene in SCENES)] for name in names]
    cells += [
        [f"delays counted once: {name}", *(changed_text(runs, f"{scene}/unscaled", name) for scene in SCENES)]
        for name in UNSCALED[1:]
    ]
    cells += [["a switch costs nothing: greedy", *(changed_text(runs, f"{scene}/free", "greedy") for scene in SCENES)]]
    title = "Speed-up over the agnostic policy, by the policy's options"
    return Grid(title, ("policy", *SCENES), cells)


def changed_text(runs: Results, place: str, name: str) -> str:
    return str(faster(runs[f"{place}/{name}"], runs[f"{place}/agnostic"]))
