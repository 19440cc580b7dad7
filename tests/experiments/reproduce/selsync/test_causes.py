"""The runs that test the reasons on the page on SelSync, and what the page says of them."""

import msgspec
import pytest

from polyrhythm.telemetry.result import EvalPoint, RunResult
from polyrhythm_experiments.reproduce import Lab
from polyrhythm_experiments.reproduce.selsync.causes import (
    DRIFTS,
    LONGER,
    NEAR,
    cause_trials,
    drift_note,
    fire_note,
    less,
    less_note,
    near_s,
    near_samples,
    often_note,
    push_note,
    sooner,
    speed_note,
)
from polyrhythm_experiments.reproduce.selsync.trials import trials


def run_of(accuracies: list[float], step_s: float = 1.0, lssr: float = 0.0) -> RunResult:
    curve = [EvalPoint(step_s * k, 100 * k, k, accuracy, 1.0) for k, accuracy in enumerate(accuracies, 1)]
    return RunResult(
        scenario="s", policy="p", seed=0, workers=2, batch_size=1, curve=curve, final_accuracy=accuracies[-1],
        duration_s=step_s * len(accuracies), lssr=lssr,
    )  # fmt: skip


BASE = [run_of([0.5, 0.7, 0.895, 0.9])]
FAST = [run_of([0.5, 0.6, 0.7, 0.89], step_s=0.1, lssr=0.8)]


def test_a_run_is_sooner_by_the_times_at_which_both_are_near() -> None:
    assert near_s(FAST, BASE) == [pytest.approx(0.4)]
    assert near_samples(FAST, BASE) == [400.0]
    assert sooner(FAST, BASE).value == pytest.approx(3.0 / 0.4)
    assert sooner([run_of([0.9 - 2 * NEAR])], BASE).value is None
    assert sooner([run_of([0.9 - 2 * NEAR])], BASE, 2 * NEAR).value == pytest.approx(3.0)


def test_a_reason_says_what_the_runs_that_test_it_say() -> None:
    runs = {
        "table/BSP": BASE,
        "table/SelSync delta = 0.3": FAST,
        "longer/0.3": [run_of([0.7, 0.91], step_s=0.5)],
        "stretch/SelSync 0.3, momentum averaged": [run_of([0.88])],
        "often": [run_of([0.87], lssr=0.75)],
        "table/SSP s = 100, rate / 4": [msgspec.structs.replace(BASE[0], final_accuracy=None)],
        "table/SSP s = 100, rate / 16": [run_of([0.84])],
    }
    assert less(FAST, BASE) == "-1.0 pt"
    assert less_note(runs, "0.3").endswith(
        "it is +1.0 pt; at equal steps and with momentum averaged along it is -2.0 pt."
    )
    assert speed_note(runs, "0.3").startswith(
        "Equal steps take BSP 10x as long. The samples to the target over BSP's: 1.33x"
    )
    assert speed_note(runs, "0.3").endswith("with 2 times the steps, at BSP - 1 pt, 3x.")
    assert "LSSR is 0.75 and SelSync's 0.8, it is +2.0 pt" in often_note(runs)
    assert "diverged at 1/4, -6.0 pt at 1/16" in push_note(runs)


def test_each_reason_has_its_runs(quick: Lab) -> None:
    causes, plain = cause_trials(quick), trials(quick)
    assert not causes.keys() & plain.keys()
    steps = [found.scenario.training for found in (causes["longer/0.3"], plain["table/SelSync delta = 0.3"])]
    assert [config.samples if config else 0 for config in steps] == [LONGER * 16 * 16 * 32, 16 * 16 * 32]
    sorted_chunks, mixed = (causes[f"{place}"].scenario.training for place in ("chunks/sorted", MIXED))
    assert sorted_chunks is not None
    assert sorted_chunks.partition == "sorted"
    assert mixed is not None
    assert mixed.injection == (0.5, 0.5)


MIXED = "skew/FedAvg (1, 0.1), injection (0.5, 0.5)"


def test_drift_is_told_for_every_regime() -> None:
    runs = {f"aggregate/{title}/{kind}": BASE if kind == "PA" else FAST for title in DRIFTS for kind in ("PA", "GA")}
    assert drift_note(runs).count("+1.0 pt") == len(DRIFTS) == 4


def test_how_often_delta_fires_is_told_from_three_runs() -> None:
    names = {"SelSync 0.3, no injection": 0.7, "SelSync (0.5, 0.5, 0.3)": 0.9, "SelSync 0.3, i.i.d. data": 0.95}
    runs = {f"skew/{name}": [run_of([0.8], lssr=share)] for name, share in names.items()}
    assert "0.7 with one label a worker, 0.9 with injection (0.5, 0.5), 0.95 on i.i.d. data" in fire_note(runs)
