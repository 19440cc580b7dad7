"""What the results of the RLP reproduction say: ratios of times, and what room staleness leaves."""

from collections.abc import Sequence
from statistics import fmean

from polyrhythm.policies.rlp.network import Learned
from polyrhythm.rl.learn import TEACHERS
from polyrhythm_experiments.reproduce.rlp.evaluation import PAPER_DQN, Ratio, best_of, compare
from polyrhythm_experiments.reproduce.rlp.trials import ResultsByKey

NAMES = {
    "ssp:1": "SSP(2)",
    "ssp:4": "SSP(5)",
    "ssp:7": "SSP(8)",
    "k-sync:{k}": "K-sync",
    "k-async:{k}": "K-async",
    "k-group:{k}": "K-group",
    "kbandit": "bandit",
    "rlp": "RLP",
    PAPER_DQN: "RLP (preset paper)",
}
"""Names in tables; SSP with the paper's s, which blocks one step earlier than ours."""
SSPS = tuple(spec for spec in TEACHERS if spec.startswith("ssp"))
AT_ONCE = (*TEACHERS, "k-group:{k}", "rlp", PAPER_DQN)
"""Policies that apply each gradient when it arrives, so that their numbers of gradients can be compared."""


def shown(spec: str) -> str:
    return NAMES.get(spec, spec.upper())


def durations(results: ResultsByKey, family: str) -> dict[str, list[float]]:
    return {spec: [run.duration_s for run in runs] for spec, runs in results[family].items()}


def over(results: ResultsByKey, family: str, base: str, spec: str) -> Ratio:
    """How many times faster a policy is than another."""
    spent = durations(results, family)
    return compare(spent[base], spent[spec])


def best(results: ResultsByKey, family: str, names: Sequence[str] = TEACHERS) -> str:
    return best_of(durations(results, family), names)


def over_best(results: ResultsByKey, family: str, spec: str = "rlp") -> Ratio:
    return over(results, family, best(results, family), spec)


def gradients(results: ResultsByKey, family: str, spec: str) -> float:
    return fmean(run.gradients_applied for run in results[family][spec])


def idle(results: ResultsByKey, family: str, spec: str) -> float:
    return fmean(run.idle_fraction for run in results[family][spec])


def reached(results: ResultsByKey, family: str, spec: str) -> bool:
    """Whether every job came to its target."""
    return all(run.time_to_target_s is not None for run in results[family][spec])


def room(results: ResultsByKey, family: str, spec: str) -> float:
    """How many times faster than ASP a policy would be if it made its gradients as fast as ASP, which never waits."""
    pairs = list(zip(results[family]["asp"], results[family][spec], strict=True))
    ideal_s = [asp.duration_s * ours.gradients_applied / asp.gradients_applied for asp, ours in pairs]
    return fmean(asp.duration_s for asp, _ in pairs) / fmean(ideal_s)


def most_room(results: ResultsByKey, family: str) -> tuple[str, float]:
    """The policy that needs the fewest gradients, and its room."""
    there = [spec for spec in AT_ONCE if reached(results, family, spec)] or ["asp"]
    return max(((spec, room(results, family, spec)) for spec in there), key=lambda each: each[1])


def departures(results: ResultsByKey, family: str, spec: str) -> str:
    """In how many jobs a policy does not end as ASP does."""
    spent = durations(results, family)
    apart = sum(ours != theirs for ours, theirs in zip(spent[spec], spent["asp"], strict=True))
    return f"{apart} of {len(spent[spec])}"


def validations(learned: Learned) -> list[tuple[float, float]]:
    """Episodes, and how many times faster than ASP the network was on validation jobs after them."""
    points = (point.split(":") for point in dict(learned.training).get("curve", "").split())
    return [(float(episodes), float(score)) for episodes, score in points]
