"""A ResNet-20 on CIFAR-10 in place of the MLP: Table I and figures 5(b) and 10 for 8 workers."""

from polyrhythm.report.document import DocumentSection, Grid
from polyrhythm.sim import Scenario
from polyrhythm_experiments.reproduce.figures import mean_text
from polyrhythm_experiments.reproduce.lab import Lab, Results, Trial
from polyrhythm_experiments.reproduce.page import ClaimRow, findings
from polyrhythm_experiments.reproduce.sync_switch.accuracy import less
from polyrhythm_experiments.reproduce.sync_switch.setups import HEADINGS, curves, label, setup_cells
from polyrhythm_experiments.reproduce.sync_switch.times import NOISE, faster, sooner
from polyrhythm_experiments.reproduce.sync_switch.trials import GENTLE, SAMPLES, SETUPS, scenario_of, switch, timed

RATE = 0.006
"""Of one mini-batch."""
EVALUATIONS = 16
"""Half of the MLP's: one takes as long as 100 gradients."""
SEEDS = 3
"""At most; a run takes a quarter of an hour."""
SHARES = (0.0625, 0.125, 0.25, 0.5)
TABLE_ONE = {"0.0625": "0.78x, 5.13x, 3.99x (setup 1)", "0.125": "0.89x, 1.66x, 1.60x (setup 2)"}
SWITCHES = {**{f"{share:g}": switch(share) for share in SHARES}, "half": switch(SHARES[0], f",lr={GENTLE['half']:g}")}
"""By name on the page, the last with half the rate after the switch."""
COMPARED = {"BSP": "bsp", "ASP": "asp", **SWITCHES}


def resnet_trials(lab: Lab) -> dict[str, Trial]:
    """BSP, ASP and every switch in setup 1, and ASP's times alone."""
    scenario = resnet_scenario(lab)
    found = {f"resnet/{name}": Trial(scenario, policy) for name, policy in COMPARED.items()}
    return found | {"resnet/times/ASP": Trial(timed(scenario), "asp")}


def resnet_scenario(lab: Lab) -> Scenario:
    """Setup 1 with the ResNet; quick: with a convolutional network on the digits."""
    if lab.quick:
        return scenario_of(lab, SETUPS[1], model="cnn")
    return scenario_of(
        lab, SETUPS[1], task="cifar10-16", model="resnet20", train_samples=None, learning_rate=RATE,
        eval_every_samples=SAMPLES // EVALUATIONS,
    )  # fmt: skip


def resnet_section(lab: Lab) -> DocumentSection:
    own = lab.with_seeds(SEEDS)
    runs = own.run(resnet_trials(own))
    table = Grid("Table I, ResNet-20", TABLE_HEADINGS, [table_cells(runs, name) for name in SWITCHES])
    cells = [[label(name), *setup_cells(runs[f"resnet/{name}"], runs["resnet/BSP"])] for name in COMPARED]
    shown = {label(name): runs[f"resnet/{name}"] for name in COMPARED}
    return findings(
        "A ResNet-20 on CIFAR-10: Table I, figures 5(b) and 10",
        text_of(own),
        resnet_rows(runs),
        [table, Grid("ResNet-20, setup 1", ("policy", *HEADINGS), cells)],
        [curves("accuracy-resnet", "Test accuracy, ResNet-20", shown, loss=False)],
    )


TABLE_HEADINGS = ("switch", "speed vs. ASP", "speed vs. BSP", "time to accuracy vs. BSP", "paper: the same three")


def table_cells(runs: Results, name: str) -> list[str]:
    mine, bsp, asp = runs[f"resnet/{name}"], runs["resnet/BSP"], runs["resnet/times/ASP"]
    figures = (faster(mine, asp), faster(mine, bsp), sooner(mine, bsp))
    return [label(name), *map(str, figures), TABLE_ONE.get(name, "")]


def resnet_rows(runs: Results) -> list[ClaimRow]:
    """The claims of figures 5(b) and 10 for setup 1."""
    bsp, asp = runs["resnet/BSP"], runs["resnet/ASP"]
    what, why = "accuracy of ASP less BSP's, ResNet-20", share_note(runs)
    rows = [ClaimRow(what, "figure 5(b)", "-2.7 pt", less(asp, bsp), why)]
    rows += [
        ClaimRow(f"accuracy of a switch at {label(f'{share:g}')} less BSP's, ResNet-20", "figure 5(b)", "about 0",
                 less(runs[f"resnet/{share:g}"], bsp), why if share < 0.5 else "")
        for share in SHARES
    ]  # fmt: skip
    gain = less(runs["resnet/0.0625"], asp)
    what = "accuracy of a switch at 6.25 % less ASP's, ResNet-20"
    rows += [ClaimRow(what, "figure 10", "+2.5 pt", gain)]
    what = "accuracy of a switch at 6.25 %, half the rate after it, less BSP's, ResNet-20"
    return [*rows, ClaimRow(what, "", "", less(runs["resnet/half"], bsp))]


def share_note(runs: Results) -> str:
    """What the share under BSP and the rate after it change, which is all that was tried."""
    texts = [f"{mean_text(less(runs[f'resnet/{name}'], runs['resnet/BSP']))} at {label(name)}" for name in SWITCHES]
    return f"Not known. Less BSP's, the accuracy of a switch is {'; '.join(texts)}."


def text_of(lab: Lab) -> str:
    task = lab.task("CIFAR-10, all 50,000 images, each averaged down from 32x32 to 16x16 pixels")
    return (
        f"{task}. The network is that of the paper with 20 layers, not 32: 0.27 M parameters, batch normalisation. The "
        "statistics of the latter stay with each worker; an evaluation takes their mean. The cluster, momentum, the "
        f"decays and {SAMPLES:,} samples are those of setup 1; images are not shifted or mirrored; the rate of a "
        f"mini-batch is {RATE:g}. An evaluation is of all 10,000 test images, one every "
        f"{SAMPLES // EVALUATIONS:,} samples. Seeds: {len(lab.seeds)}. Time to accuracy is that to BSP's accuracy "
        f"less {100 * NOISE:g} points. ASP's speed is from times alone."
    )
