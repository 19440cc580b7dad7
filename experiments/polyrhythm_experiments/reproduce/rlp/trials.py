"""What the RLP reproduction runs: held-out jobs of every family under every policy, each remembered."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

import joblib

from polyrhythm.policies.rlp.network import dump, load
from polyrhythm.rl.instances import Instance
from polyrhythm.rl.learn import TEACHERS
from polyrhythm.telemetry import RunResult
from polyrhythm_experiments.reproduce.lab import Lab
from polyrhythm_experiments.reproduce.rlp.evaluation import instances, measure

SPECS = (*TEACHERS, "k-sync:{k}", "k-async:{k}", "k-group:{k}", "kbandit", "rlp")
"""What is compared; {k} is seven tenths of the workers."""
JOBS_PER_SEED = 4
"""Held-out jobs of a family for each seed that was asked for."""
TRAINED, TRAINED_JOBS = "staleness", 3
"""The family that the shipped policy was trained for, of which there are so many times as many jobs."""

FIGURES: dict[str, tuple[str, ...]] = {
    "Figure 2(a): jobs as in training": ("paper", "staleness"),
    "Figure 2(b): hidden layers": ("hidden-0", "hidden-3"),
    "Figure 2(c): stragglers": ("stragglers-0", "stragglers-1", "stragglers-several"),
    "Figure 3(a): workers": ("workers-2", "workers-5", "workers-8"),
    "Figure 3(b): another model, another data set": ("hidden-6", "fashion"),
    "Figure 3(c): all of it together": ("combined",),
}
QUICK: dict[str, tuple[str, ...]] = {"Figure 2(b): hidden layers": ("hidden-0",)}

ResultsByKey: TypeAlias = Mapping[str, Mapping[str, list[RunResult]]]
"""Results by family and spec, a job each."""


def figures(lab: Lab) -> dict[str, tuple[str, ...]]:
    return QUICK if lab.quick else FIGURES


def run(lab: Lab) -> ResultsByKey:
    families = [family for group in figures(lab).values() for family in group]
    jobs = {family: instances(family, count(lab, family)) for family in families}
    results = iter(measured(lab, [(each, spec) for family in families for spec in SPECS for each in jobs[family]]))
    return {family: {spec: [next(results) for _ in jobs[family]] for spec in SPECS} for family in families}


def count(lab: Lab, family: str) -> int:
    return 2 if lab.quick else JOBS_PER_SEED * len(lab.seeds) * (TRAINED_JOBS if family == TRAINED else 1)


def measured(lab: Lab, wanted: Sequence[tuple[Instance, str]]) -> list[RunResult]:
    found = [lab.store.find(name(spec), made_from(each, spec), RunResult) for each, spec in wanted]
    missing = [place for place, result in enumerate(found) if result is None]
    lab.tell(len(wanted) - len(missing), len(wanted))
    lab.now(f"{', '.join(dict.fromkeys(name(wanted[place][1]) for place in missing))} on jobs of the paper")
    for done, (place, result) in enumerate(fresh(lab, wanted, missing), start=1):
        found[place] = lab.store.keep(name(wanted[place][1]), made_from(*wanted[place]), result)
        lab.tell(len(wanted) - len(missing) + done, len(wanted))
    return [result for result in found if result is not None]


def fresh(lab: Lab, wanted: Sequence[tuple[Instance, str]], missing: Sequence[int]) -> Iterator[tuple[int, RunResult]]:
    jobs = lab.jobs if len(missing) > 1 else 1
    calls = (joblib.delayed(measure_at)(place, *wanted[place], lab.data) for place in missing)
    yield from joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")(calls)


def measure_at(place: int, instance: Instance, spec: str, folder: str | None) -> tuple[int, RunResult]:
    return place, measure(instance, spec, folder)


def name(spec: str) -> str:
    return spec.replace("{k}", "k")


def made_from(instance: Instance, spec: str) -> list[Any]:
    """All that a result depends on."""
    facts: list[Any] = [asdict(instance), spec]
    return [*facts, dump(load(""))] if spec == "rlp" else facts
