"""What the RLP reproduction runs: held-out jobs of every family under every policy, each remembered."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeAlias

import joblib

from polyrhythm.policies.rlp.network import dump, load
from polyrhythm.rl.instances import Instance
from polyrhythm.rl.learn import TEACHERS
from polyrhythm.sim.run import processes_for
from polyrhythm.sim.tied import delayed
from polyrhythm.telemetry import RunResult
from polyrhythm_experiments.reproduce.lab import Lab
from polyrhythm_experiments.reproduce.rlp.evaluation import PAPER_DQN, PAPER_FILE, instances, measure
from polyrhythm_experiments.reproduce.rlp.families import ABLATED, FIGURES, OWN_FIGURES, SETTING, TABLE, TRAINED

LEARNED = ("rlp", PAPER_DQN)
"""The policy that ships with the package, and the paper's own system."""
SPECS = (*TEACHERS, "k-sync:{k}", "k-async:{k}", "k-group:{k}", "kbandit", *LEARNED)
"""What is compared; {k} is seven tenths of the workers."""
JOBS_PER_SEED = 4
"""Held-out jobs of a family for each seed that was asked for."""
MORE_JOBS = 3
"""So many times as many of the two families that were trained for."""
COLLECTED_EVERY = 50
"""After so many jobs episodes are freed: each is a reference cycle that holds its samples, about 10 MB, and beside
thousands of results Python collects cycles too rarely (3.8 GB were seen)."""
QUICK: dict[str, tuple[str, ...]] = {"Figure 2(b): hidden layers": ("hidden-0",)}

ResultsByKey: TypeAlias = Mapping[str, Mapping[str, list[RunResult]]]
"""Results by family and spec, a job each."""


def figures(lab: Lab) -> dict[str, tuple[str, ...]]:
    """Families of each figure: in the paper's setting, then with small models."""
    return QUICK if lab.quick else {title: (*OWN_FIGURES[title], *FIGURES[title]) for title in FIGURES}


def families(lab: Lab) -> list[str]:
    """Of the figures, then of the ablations and of table 1."""
    return [*(name for group in figures(lab).values() for name in group), *ablated(lab)]


def ablated(lab: Lab) -> list[str]:
    return [] if lab.quick else [*ABLATED, *TABLE]


def run(lab: Lab) -> ResultsByKey:
    jobs = {family: instances(family, count(lab, family)) for family in families(lab)}
    results = iter(measured(lab, [(each, spec) for family in jobs for spec in SPECS for each in jobs[family]]))
    return {family: {spec: [next(results) for _ in jobs[family]] for spec in SPECS} for family in jobs}


def count(lab: Lab, family: str) -> int:
    return 2 if lab.quick else JOBS_PER_SEED * len(lab.seeds) * (MORE_JOBS if family in (SETTING, TRAINED) else 1)


def measured(lab: Lab, wanted: Sequence[tuple[Instance, str]]) -> list[RunResult]:
    found = [lab.store.find(name(spec), made_from(each, spec), RunResult) for each, spec in wanted]
    missing = [place for place, result in enumerate(found) if result is None]
    lab.tell(len(wanted) - len(missing), len(wanted))
    lab.now(f"{', '.join(dict.fromkeys(name(wanted[place][1]) for place in missing))} on jobs of the paper")
    for done, (place, result) in enumerate(fresh(lab, wanted, missing), start=1):
        found[place] = lab.store.keep(name(wanted[place][1]), made_from(*wanted[place]), result)
        lab.tell(len(wanted) - len(missing) + done, len(wanted))
        if done % COLLECTED_EVERY == 0:
            gc.collect()
    return [result for result in found if result is not None]


def fresh(lab: Lab, wanted: Sequence[tuple[Instance, str]], missing: Sequence[int]) -> Iterator[tuple[int, RunResult]]:
    jobs = processes_for(missing, lab.jobs)
    calls = (delayed(measure_at)(place, *wanted[place], lab.data) for place in missing)
    yield from joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")(calls)


def measure_at(place: int, instance: Instance, spec: str, folder: str | None) -> tuple[int, RunResult]:
    return place, measure(instance, spec, folder)


def name(spec: str) -> str:
    return spec.replace("{k}", "k")


def made_from(instance: Instance, spec: str) -> list[Any]:
    """All that a result depends on."""
    learned = {"rlp": "", PAPER_DQN: str(PAPER_FILE)}
    return [asdict(instance), spec, *([dump(load(learned[spec]))] if spec in learned else [])]
