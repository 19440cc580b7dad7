import math
import os
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import joblib
import msgspec
import numpy as np
import pytest
import torch

from polyrhythm import __version__
from polyrhythm.core import Policy, Trace, replay
from polyrhythm.errors import DivergedError, ScenarioError, SpecError, UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.sim import Limits, Scenario, TimingWorkload, compare, load_scenario, simulate, sweep
from polyrhythm.sim import run as run_module
from polyrhythm.sim.numerics import Evaluation, TimingOnly
from polyrhythm.sim.tied import delayed
from polyrhythm.telemetry import RunResult
from polyrhythm.training.config import TrainingConfig
from tests.sim.clusters import SPECS, Scripted, cluster

ROOT = Path(__file__).parents[2]
STRAGGLERS = {"training": "none", "workload.samples": "2000"}
DIGITS = {"training.epochs": "1", "training.eval_every_samples": "200"}

SCRIPT = """
import sys
import threading
import warnings
from polyrhythm.policies import parse_policy
from polyrhythm.sim import load_scenario, simulate
scenario = load_scenario(sys.argv[1], dict(pair.split("=") for pair in sys.argv[4:]))
simulate(scenario, parse_policy(sys.argv[2]), seed=7, trace=sys.argv[3])
"""


def same(first: RunResult, second: RunResult) -> bool:
    """Equal but for the wall clock and the trace's place."""
    kept = [msgspec.structs.replace(result, wall_s=0.0, trace_path=None) for result in (first, second)]
    return kept[0] == kept[1]


# Determinism.


@pytest.mark.parametrize("spec", SPECS)
def test_same_seed_same_trace(spec: str, tmp_path: Path) -> None:
    scenario = load_scenario("stragglers-moderate", STRAGGLERS)
    results = [
        simulate(scenario, parse_policy(spec), seed=seed, trace=tmp_path / f"{i}") for i, seed in enumerate((3, 3, 4))
    ]
    first, second, other = [(tmp_path / f"{i}").read_bytes() for i in range(3)]
    assert first == second != other
    assert same(results[0], results[1])


@pytest.mark.parametrize(("overrides", "hash_seed"), [(DIGITS, "1"), (STRAGGLERS, "0"), (STRAGGLERS, "4711")])
def test_same_trace_in_another_process(overrides: dict[str, str], hash_seed: str, tmp_path: Path) -> None:
    scenario = load_scenario("stragglers-moderate", overrides)
    simulate(scenario, parse_policy("ssp:2"), seed=7, trace=tmp_path / "here")
    options = [f"{key}={value}" for key, value in overrides.items()]
    arguments = ["stragglers-moderate", "ssp:2", str(tmp_path / "there"), *options]
    environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", SCRIPT, *arguments], env=environment, check=True)
    assert (tmp_path / "there").read_bytes() == (tmp_path / "here").read_bytes()


@pytest.mark.parametrize("spec", SPECS)
def test_traces_replay(spec: str, tmp_path: Path) -> None:
    scenario = load_scenario("mixed-hardware", STRAGGLERS)
    simulate(scenario, parse_policy(spec), trace=tmp_path / "trace")
    trace = Trace.load(tmp_path / "trace")
    assert trace.header.about == {"scenario": "mixed-hardware", "seed": 0, "polyrhythm": __version__}
    assert tuple(replay(parse_policy(spec), trace)) == trace.entries


# Results.


def test_result_of_a_run_without_training() -> None:
    result = simulate(cluster(1.0, 1.0, samples=10, batch_size=2), parse_policy("bsp"), seed=5, target=0.5)
    assert (result.scenario, result.policy, result.seed, result.where, result.status) == (
        "custom",
        "bsp",
        5,
        "simulated",
        "ok",
    )
    assert (result.workers, result.batch_size, result.learning_rate, result.lr_convention) == (2, 2, None, None)
    assert (result.samples, result.steps, result.curve, result.target_accuracy) == (10, 5, [], 0.5)
    assert result.wall_s > 0


def test_training_evaluates_at_its_multiples_and_at_the_end() -> None:
    scenario = load_scenario("uniform", {**DIGITS, "training.eval_every_samples": "500"})
    result = simulate(scenario, parse_policy("bsp"))
    assert [point.samples for point in result.curve] == [512, 1024, 1437]
    assert [point.updates for point in result.curve] == [8, 16, 23]
    assert result.curve[-1].time_s == result.duration_s
    assert result.final_accuracy == result.curve[-1].accuracy
    assert (result.target_accuracy, result.learning_rate, result.lr_convention) == (0.95, 0.01, "linear")


def test_replicas_are_evaluated_when_they_have_been_averaged() -> None:
    scenario = load_scenario("uniform", {**DIGITS, "training.eval_every_samples": "100"})
    result = simulate(scenario, parse_policy("local:h=4"))
    assert [point.samples for point in result.curve] == [256, 512, 768, 1024, 1280, 1437]
    assert [point.updates for point in result.curve] == [1, 2, 3, 4, 5, 5]


def test_a_target_may_stop_the_run() -> None:
    overrides = {**DIGITS, "limits.stop_at_target": "true"}
    result = simulate(load_scenario("uniform", overrides), parse_policy("asp"), target=0.3)
    assert result.curve[-1].accuracy >= 0.3
    assert all(point.accuracy < 0.3 for point in result.curve[:-1])
    assert result.time_to_target_s == result.duration_s
    assert result.samples < 1437
    assert result.dropped_by_reason == {"unfinished": 8}


def test_built_in_scenarios_learn() -> None:
    scenario = load_scenario("uniform", {"training.epochs": "5"})
    result = simulate(scenario, parse_policy("asp"))
    assert result.best_accuracy is not None
    assert result.best_accuracy > 0.8


def test_progress() -> None:
    shares: list[float] = []
    simulate(cluster(1.0, samples=1000), parse_policy("asp"), progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert 90 <= len(shares) <= 110


def test_a_diverged_run_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    class Diverging(TimingOnly):
        train_samples = 100
        evaluations = 0

        def evaluate(self) -> Any:
            self.evaluations += 1
            if self.evaluations > 2:
                raise DivergedError("the loss is\nnan")
            return Evaluation(0.5, 1.0)

    monkeypatch.setattr(run_module, "build_numerics", lambda scenario, seed, threads: Diverging())
    training = TrainingConfig(batch_size=10, epochs=1, eval_every_samples=20)
    result = simulate(Scenario(devices=load_scenario("uniform").devices, training=training), parse_policy("asp"))
    assert (result.status, result.message) == ("diverged", "the loss is nan")
    assert len(result.curve) == 2
    assert 0 < result.samples < 100
    assert result.duration_s > 0
    assert result.gradients_computed == result.gradients_applied + result.gradients_dropped


def test_a_learning_rate_that_is_too_high_diverges() -> None:
    result = simulate(load_scenario("uniform", {**DIGITS, "training.learning_rate": "1e30"}), parse_policy("bsp"))
    assert result.status == "diverged"
    assert "\n" not in result.message


def test_a_trace_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="cannot write trace"):
        simulate(cluster(1.0), parse_policy("asp"), trace=tmp_path)


def test_folders_of_a_trace_are_made(tmp_path: Path) -> None:
    result = simulate(cluster(1.0), parse_policy("asp"), trace=tmp_path / "a" / "b.jsonl")
    assert result.trace_path == str(tmp_path / "a" / "b.jsonl")
    assert len(Trace.load(result.trace_path).entries) == 14


# Sweeps.


@pytest.mark.parametrize(("jobs", "processes"), [(500, 2), (2, 2), (-1, -1), (1, 1)])
def test_a_sweep_starts_no_process_that_has_no_run(monkeypatch: pytest.MonkeyPatch, jobs: int, processes: int) -> None:
    asked: list[int] = []

    def one_by_one(n_jobs: int, **_: Any) -> joblib.Parallel:
        asked.append(n_jobs)
        return joblib_parallel(n_jobs=1, return_as="generator")

    joblib_parallel = joblib.Parallel
    monkeypatch.setattr(joblib, "Parallel", one_by_one)
    assert len(sweep(cluster(1.0, 2.0), ["asp", "bsp"], [0], jobs=jobs)) == 2
    assert asked == [processes]


@pytest.mark.parametrize("jobs", [1, 2])
def test_sweep(jobs: int, tmp_path: Path) -> None:
    scenario = load_scenario("stragglers-mild", STRAGGLERS)
    seen: list[RunResult] = []
    results = sweep(
        scenario,
        ["bsp", parse_policy("ssp:2")],
        [0, 5],
        trace_dir=tmp_path,
        jobs=jobs,
        target=0.9,
        on_result=seen.append,
    )
    assert [(result.policy, result.seed) for result in results] == [("bsp", 0), ("bsp", 5), ("ssp:2", 0), ("ssp:2", 5)]
    assert sorted(seen, key=id) == sorted(results, key=id)
    alone = [
        simulate(scenario, parse_policy(spec), seed=seed, target=0.9) for spec in ("bsp", "ssp:2") for seed in (0, 5)
    ]
    assert all(map(same, results, alone))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bsp-seed0.jsonl",
        "bsp-seed5.jsonl",
        "ssp-2-seed0.jsonl",
        "ssp-2-seed5.jsonl",
    ]


@pytest.mark.parametrize(
    ("policies", "both"),
    [
        (["local:8", "bsp", "local:h=8"], "local:8 twice"),
        (["switch:bsp@0.5,asp", "switch:(bsp)@0.5,asp"], "switch:bsp@"),
    ],
)
def test_a_sweep_refuses_policies_whose_traces_would_be_one_file(
    policies: list[str], both: str, tmp_path: Path
) -> None:
    scenario = cluster(1.0, 2.0, samples=40)
    with pytest.raises(UsageError, match=f"^policies has {both}.*, whose traces in trace_dir would be one file; give"):
        sweep(scenario, policies, [0], trace_dir=tmp_path, jobs=1)
    assert not [*tmp_path.iterdir()]
    assert len(sweep(scenario, policies, [0], jobs=1)) == len(policies)


def test_compare_is_a_sweep_with_its_results_by_policy() -> None:
    policies: list[str | Policy[Any]] = ["ssp:s=2", parse_policy("bsp")]
    results = compare(cluster(1.0, 2.0), policies, [0, 5], jobs=1)
    assert {spec: [run.seed for run in runs] for spec, runs in results.items()} == {"ssp:2": [0, 5], "bsp": [0, 5]}
    flat = sweep(cluster(1.0, 2.0), policies, [0, 5], jobs=1)
    assert all(map(same, [run for runs in results.values() for run in runs], flat))


def test_compare_refuses_an_unknown_policy_before_anything_runs() -> None:
    with pytest.raises(SpecError, match="did you mean bsp"):
        compare(cluster(1.0), ["asp", "bps"])


def test_compare_runs_once_what_is_named_twice() -> None:
    asked: list[str | Policy[Any]] = ["ssp:2", "ssp:s=2"]
    assert {spec: len(runs) for spec, runs in compare(cluster(1.0), asked, range(2), jobs=1).items()} == {"ssp:2": 2}


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"scenario": "uniform"}, r"scenario must be a Scenario but got 'uniform'; write load_scenario\('uniform'\)"),
    ({"scenario": None}, r"scenario must be a Scenario but got None; write load_scenario\('uniform'\)"),
    ({"policy": None}, "a policy is a spec, such as 'ssp:3', or a Policy, but got None"),
    ({"policy": ["bsp"]}, r"a policy is a spec, such as 'ssp:3', or a Policy, but got \['bsp'\]"),
    ({"seed": -1}, "seed must be a whole number from 0 to 4294967295 but got -1"),
    ({"seed": True}, "seed must be a whole number from 0 to 4294967295 but got True"),
    ({"seed": 1.5}, "seed must be a whole number from 0 to 4294967295 but got 1.5"),
    ({"seed": "1"}, "seed must be a whole number from 0 to 4294967295 but got '1'"),
    ({"seed": 2**70}, "seed must be a whole number from 0 to 4294967295 but got 1180591620717411303424"),
    ({"target": "0.9"}, "target must be a number from 0 to 1 but got '0.9'"),
    ({"target": math.nan}, "target must be a number from 0 to 1 but got nan"),
    ({"trace": 3}, "trace must be a path but got 3"),
    ({"progress": 3}, "progress must be a function but got 3"),
]
SEVERAL: list[tuple[dict[str, Any], str]] = [
    ({"scenario": "uniform"}, "scenario must be a Scenario but got 'uniform'"),
    ({"policies": "bsp"}, r"policies must be a list, as in \['bsp', 'ssp:3'\], but got 'bsp'"),
    ({"policies": parse_policy("bsp")}, r"policies must be a list, as in \['bsp', 'ssp:3'\], but got BSP\(\)"),
    ({"policies": ["bsp", None]}, "a policy is a spec, such as 'ssp:3', or a Policy, but got None"),
    ({"policies": []}, r"policies is empty; give at least one, as in \['bsp', 'ssp:3'\]"),
    ({"seeds": ()}, r"seeds is empty; give at least one, as in \[0, 1, 2\]"),
    ({"seeds": 3}, r"seeds must be a list, as in \[0, 1, 2\], but got 3"),
    ({"seeds": "12"}, r"seeds must be a list, as in \[0, 1, 2\], but got '12'"),
    ({"seeds": [0, 1, 0]}, r"seeds has 0 twice; give each once, as in \[0, 1, 2\]"),
    ({"seeds": [-1]}, "each of seeds must be a whole number from 0 to 4294967295 but got -1"),
    ({"target": 90}, "target must be a number from 0 to 1 but got 90"),
    ({"jobs": 0}, "jobs must be a whole number of at least 1, or -1 for one a core, but got 0"),
    ({"jobs": "x"}, "jobs must be a whole number of at least 1, or -1 for one a core, but got 'x'"),
]


@pytest.mark.parametrize(("wrong", "line"), ARGUMENTS)
def test_a_wrong_argument_of_simulate_is_one_line(wrong: dict[str, Any], line: str) -> None:
    with pytest.raises(UsageError, match=f"^{line}$"):
        simulate(**{"scenario": cluster(1.0), "policy": "bsp", **wrong})


@pytest.mark.parametrize(("wrong", "line"), SEVERAL)
def test_a_wrong_argument_of_several_runs_is_one_line(wrong: dict[str, Any], line: str) -> None:
    for several in (compare, sweep):
        arguments: dict[str, Any] = {"scenario": cluster(1.0), "policies": ["bsp"], "seeds": [0], **wrong}
        with pytest.raises(UsageError, match=f"^{line}"):
            several(**arguments)


def test_a_wrong_argument_of_a_sweep_alone_is_one_line() -> None:
    wrong: Any = 3
    with pytest.raises(UsageError, match="trace_dir must be a path but got 3"):
        sweep(cluster(1.0), ["bsp"], [0], trace_dir=wrong)
    with pytest.raises(UsageError, match="on_result must be a function but got 3"):
        sweep(cluster(1.0), ["bsp"], [0], on_result=wrong)


def test_seeds_may_be_of_numpy_and_run_out() -> None:
    seeds: Any = iter(np.arange(2))
    results = compare(cluster(1.0), ["bsp"], seeds, jobs=1)
    assert [(run.seed, type(run.seed)) for run in results["bsp"]] == [(0, int), (1, int)]


def test_sweep_with_training_on_all_cores() -> None:
    results = sweep(load_scenario("uniform", DIGITS), ["bsp", "asp"], [0])
    assert [result.status for result in results] == ["ok", "ok"]
    assert same(results[1], simulate(load_scenario("uniform", DIGITS), parse_policy("asp")))


def test_a_sweep_leaves_the_number_of_threads_alone() -> None:
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    sweep(load_scenario("uniform", {"training.samples": "32"}), ["bsp"], [0], jobs=1)
    after = torch.get_num_threads()
    torch.set_num_threads(threads)
    assert after == threads + 1


def test_failures_keep_the_others() -> None:
    results = sweep(cluster(1.0, 1.0), ["asp", "bps", Scripted([()])], [0], jobs=1)
    assert [result.status for result in results] == ["ok", "failed", "failed"]
    assert results[1].message.startswith("unknown policy 'bps': did you mean")
    assert "is deadlocked" in results[2].message
    assert (results[1].policy, results[1].workers) == ("bps", 2)


@pytest.mark.parametrize("backend", ["threading", "multiprocessing"])
def test_a_sweep_follows_the_enclosing_backend(backend: str) -> None:
    with joblib.parallel_config(backend=backend):
        results = sweep(cluster(1.0, 2.0), ["asp", "bsp"], [0, 1], jobs=2)
    assert [(result.policy, result.seed) for result in results] == [("asp", 0), ("asp", 1), ("bsp", 0), ("bsp", 1)]


def test_timing_only_does_not_import_torch() -> None:
    code = (
        "import sys\nfrom polyrhythm import load_scenario, simulate\n"
        "simulate(load_scenario('uniform', {'training': 'none'}), 'bsp')\nassert 'torch' not in sys.modules"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_limits_of_the_clock() -> None:
    scenario = Scenario(
        devices=cluster(1.0).devices,
        limits=Limits(time_s=2.5),
        workload=TimingWorkload(batch_size=1, samples=9),
    )
    assert simulate(scenario, parse_policy("asp")).duration_s == 2.5
    assert math.isinf(Limits().time_s)


def test_without_a_model_a_probe_has_no_loss_and_the_fallback_stays() -> None:
    probing, asp = (simulate(cluster(1.0, 1.5, samples=40), policy) for policy in ("rlp:loss=probe", "asp"))
    assert (probing.samples, probing.steps_by_worker) == (asp.samples, asp.steps_by_worker)


def hold(number: int) -> int:
    """In a process of joblib's: the first is through, the others never are."""
    if number:
        threading.Event().wait()
    return number


def test_whoever_wants_no_more_runs_is_told_nothing_of_those_that_are_cut_short() -> None:
    results: Any = run_module.completed([delayed(hold)(number) for number in range(4)], 2)
    assert next(results) == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        results.close()
