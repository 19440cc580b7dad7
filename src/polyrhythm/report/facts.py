"""The conditions of a comparison in words: what must be known before its table is believed."""

from collections.abc import Sequence

from polyrhythm.telemetry.numbers import NOTHING
from polyrhythm.telemetry.result import RunResult

WORKERS = {
    "simulated": "workers",
    "local": "real workers on this host (delays and bandwidth_gbps are emulated)",
}


def facts(results: Sequence[RunResult]) -> dict[str, str]:
    """Names and values of the conditions that all results share; empty without results."""
    if not results:
        return {}
    first = results[0]
    target = target_of(results)
    return {
        "scenario": first.scenario,
        "cluster": f"{first.workers} {WORKERS[first.where]}, mini-batches of {first.batch_size}",
        "seeds": numbers(sorted({result.seed for result in results})),
        "target": f"test accuracy {target:g}" if target is not None else "none; ranked by duration",
        "learning rate": rates(first),
    }


def target_of(results: Sequence[RunResult]) -> float | None:
    """The target accuracy, which a run that failed does not know."""
    return next((result.target_accuracy for result in results if result.target_accuracy is not None), None)


def rates(result: RunResult) -> str:
    eta, convention = result.learning_rate, result.lr_convention
    if eta is None or convention is None:
        return "none: timing only, no model is trained"
    most = result.workers * eta
    conventions = {
        "linear": f"linear: {eta:g} for one mini-batch, m x {eta:g} for an update that averages m gradients "
        f"(all {result.workers}: {most:g}) and {most:g} for a step on a replica that is averaged later",
        "same": f"same: {eta:g} for every update, however many gradients it averages, and for every local step",
    }
    return conventions[convention] + "; schedules count samples"


def numbers(values: Sequence[int]) -> str:
    """A list of numbers, a run of neighbours as a range.

    >>> numbers([0, 1, 2]), numbers([3]), numbers([1, 5])
    ('0 to 2', '3', '1, 5')
    """
    if len(values) > 2 and values[-1] - values[0] == len(values) - 1:
        return f"{values[0]} to {values[-1]}"
    return ", ".join(map(str, values)) or NOTHING


def troubles(results: Sequence[RunResult]) -> list[str]:
    return [
        f"{result.policy}, seed {result.seed}: {result.status}: {result.message}"
        for result in results
        if result.status != "ok"
    ]
