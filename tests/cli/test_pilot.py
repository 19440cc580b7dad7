"""run --policy sync-switch, with trials that are formulas."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from polyrhythm.cli import pilot
from polyrhythm.cli.pilot import Pilot, accuracy_in, job_of, piloted_trial, read_pilot, resolved, trials_of
from polyrhythm.early_end import early_end
from polyrhythm.errors import JobError, PolyrhythmError
from polyrhythm.runtime.launch.torchrun import read_command
from polyrhythm.runtime.wire.config_sources import PILOT
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.worker.refusals import refuse_shares
from polyrhythm.search.plan import SearchTrial, TrialOutcome
from tests.search.jobs import knee

TRIAL = SearchTrial("switch:bsp@0.5,asp", 0)


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    monkeypatch.setenv("POLYRHYTHM_STORE", str(tmp_path / "searches.db"))
    script = tmp_path / "train.py"
    script.write_text("print('accuracy 0.9')\n", encoding="utf-8")
    return ["--nproc-per-node", "2", "--epochs", "4", "--policy", "sync-switch", str(script), "--seed", "{run}"]


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[SearchTrial]:
    """Trials that were run."""
    trials: list[SearchTrial] = []

    def trial_of(pilot: Pilot, trial: SearchTrial) -> TrialOutcome:
        trials.append(trial)
        return knee(0.3)(trial)

    monkeypatch.setattr(pilot, "piloted_trial", trial_of)
    return trials


def with_search(words: list[str]) -> list[str]:
    return ["--search", "--settings", "3", "--error-rate", "0.5", *words]


def test_other_policies_are_left_alone() -> None:
    words = ["--policy", "asp", "train.py", "--policy", "sync-switch"]
    assert resolved(words) == words
    assert resolved(["--help"]) == ["--help"]


def test_the_environment_may_ask_for_the_search(
    words: list[str], made: list[SearchTrial], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SEARCH": "1", "SETTINGS": "1", "RUNS": "1", "ERROR_RATE": "0.5"}.items():
        monkeypatch.setenv(f"POLYRHYTHM_{name}", value)
    resolved(words)
    assert [trial.run for trial in made] == [0, 0]


def test_without_a_search_an_unknown_job_is_one_line(words: list[str]) -> None:
    with pytest.raises(PolyrhythmError, match=r"no switch point is known for this job .*; add --search"):
        resolved(words)


def test_a_job_is_piloted_once_and_then_known(
    words: list[str], made: list[SearchTrial], capsys: pytest.CaptureFixture[str]
) -> None:
    ready = resolved(with_search(words))
    assert ready == [*words[:4], "--policy", "switch:bsp@0.375,asp", words[6], "--seed", "0"]
    assert len(made) == capsys.readouterr().err.count("polyrhythm: pilot ") == len(set(made)) > 6
    count = len(made)
    assert resolved(words) == resolved(with_search(words)) == ready
    assert resolved(["--job", "again", "--trace=t", *words])[:3] == ["--job", "again", "--trace=t"]
    assert len(made) == count
    Path(words[6]).write_text("print('another script')\n", encoding="utf-8")
    with pytest.raises(PolyrhythmError, match="no switch point is known"):
        resolved(words)


@pytest.mark.parametrize("other", [("--target", "0.99"), ("--beta", "0.2"), ("--metric", "top5 ([0-9.]+)")])
def test_an_answer_is_that_of_the_search_that_is_asked_for(
    words: list[str], other: tuple[str, str], made: list[SearchTrial], capsys: pytest.CaptureFixture[str]
) -> None:
    first = resolved(with_search(words))
    count = len(made)
    second = resolved([*other, *with_search(words)])
    said = capsys.readouterr().err
    assert "switch:bsp@0.375,asp was found by a search with other flags; a search with these begins" in said
    assert (second == first) == (other[0] == "--metric")
    assert made.count(made[0]) == (2 if other[0] == "--metric" else 1), "what does not depend on the flags is kept"
    count = len(made)
    assert resolved([*other, *with_search(words)]) == resolved(words) == second, "the latest answer holds"
    assert len(made) == count


def test_an_answer_belongs_to_the_code_of_its_policy(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pilot, "piloted_trial", lambda pilot, trial: replace(knee(0.3)(TRIAL), trial=trial))
    mine = tmp_path / "mine.py"
    mine.write_text("from polyrhythm.policies import Elastic\n\nclass Mine(Elastic): ...\n", encoding="utf-8")
    words[words.index("sync-switch")] = f"{mine}:Mine:policy=(sync-switch)"
    assert resolved(with_search(words)) == resolved(words)
    mine.write_text("from polyrhythm.policies import Elastic\n\nclass Mine(Elastic): pass\n", encoding="utf-8")
    with pytest.raises(PolyrhythmError, match="no switch point is known"):
        resolved(words)


def test_a_job_file_may_ask_for_it(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pilot, "piloted_trial", lambda pilot, trial: knee(0.3)(trial))
    text = "policy = 'sync-switch'\nsearch = true\nsettings = 3\nerror-rate = 0.5\nnproc-per-node = 2\nepochs = 3\n"
    (tmp_path / "job.toml").write_text(text, encoding="utf-8")
    file = ["--config", str(tmp_path / "job.toml")]
    ready = resolved([*file, "--epochs", "4", *words[6:]])
    assert ready == ["--nproc-per-node=2", "--epochs", "4", "--policy", "switch:bsp@0.375,asp", words[6], "--seed", "0"]
    assert f"epochs 4 of --epochs holds; 3 of {file[1]} is overruled" in capsys.readouterr().err
    asp = [*file, "--policy", "asp", *words[6:]]
    assert resolved(asp) == asp
    assert read_command(asp).config.policy == "asp"


def test_a_family_shares_its_point_whatever_the_script_is_told(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pilot, "piloted_trial", lambda pilot, trial: knee(0.3)(trial))
    family = ["--job-family", "digits"]
    resolved([*family, *with_search(words)])
    Path(words[6]).write_text("print('accuracy 0.8')\n", encoding="utf-8")
    assert "switch:bsp@0.375,asp" in resolved([*family, *words, "--lr", "0.5"])
    assert "is the policy that was found for this job (family digits)" in capsys.readouterr().err
    with pytest.raises(PolyrhythmError, match="no switch point is known for this job"):
        resolved(words)
    with pytest.raises(PolyrhythmError, match=r"searched with --nproc-per-node 2, and this job has 3; a switch point"):
        resolved([*family, "--nproc-per-node", "3", *words[2:]])


@pytest.mark.parametrize("asked", ["for its point", "to search, in vain"])
def test_a_family_is_not_settled_by_a_job_that_has_found_nothing(
    words: list[str], monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    def trial_of(pilot: Pilot, trial: SearchTrial) -> TrialOutcome:
        if "3" in pilot.flags:
            raise JobError("the script fails")
        return knee(0.3)(trial)

    monkeypatch.setattr(pilot, "piloted_trial", trial_of)
    family, search = ["--job-family", "digits"], ["--search"] if asked == "to search, in vain" else []
    with pytest.raises(PolyrhythmError, match=r"the script fails|no switch point is known .*family digits"):
        resolved([*family, *search, "--nproc-per-node", "3", *words[2:]])
    assert "switch:bsp@0.375,asp" in resolved([*family, *with_search(words)])


def test_jobs_of_a_family_share_no_accuracies(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The first search is interrupted after its baseline; the second has another rate, and another accuracy."""
    made: list[SearchTrial] = []

    def trial_of(pilot: Pilot, trial: SearchTrial) -> TrialOutcome:
        if len(made) == 1 and "0.1" in pilot.script:
            raise KeyboardInterrupt
        made.append(trial)
        return knee(0.3)(trial)

    monkeypatch.setattr(pilot, "piloted_trial", trial_of)
    family = ["--job-family", "digits", *with_search(words), "--lr"]
    with pytest.raises(KeyboardInterrupt):
        resolved([*family, "0.1"])
    first = made[0]
    resolved([*family, "0.02"])
    assert made.count(first) == 2


def test_an_accuracy_is_one_of_its_metric(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pilots = [read_pilot([*metric, *words]) for metric in ([], ["--metric", "top5 ([0-9.]+)"])]
    assert len({trials_of(each) for each in pilots if each}) == 2
    assert len({job_of(each) for each in pilots if each}) == 1


def test_a_wrapped_search_tries_wrapped_policies(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def trial_of(pilot: Pilot, trial: SearchTrial) -> TrialOutcome:
        made.append(trial.spec)
        return replace(knee(0.3)(SearchTrial(trial.spec[len("elastic:policy=(") : -1], trial.run)), trial=trial)

    monkeypatch.setattr(pilot, "piloted_trial", trial_of)
    words[words.index("sync-switch")] = "elastic:policy=(sync-switch)"
    assert "elastic:policy=(switch:bsp@0.375,asp)" in resolved(with_search(words))
    assert set(made) <= {f"elastic:policy=(switch:bsp@{x},asp)" for x in ("1", "0.5", "0.25", "0.375")}
    words[words.index("elastic:policy=(sync-switch)")] = "sync-switch"
    with pytest.raises(PolyrhythmError, match="no switch point is known"):
        resolved(words)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("switch:(sync-switch)@0.5,(sync-switch)", "names sync-switch 2 times; one switch point can be searched"),
        ("ssp:(sync-switch)", "ssp"),
        ("sync-switch:0.5", "sync-switch takes no value; a point is named as in switch:bsp@0.5,asp"),
    ],
)
def test_a_search_that_stands_nowhere_is_refused(words: list[str], policy: str, message: str) -> None:
    words[words.index("sync-switch")] = policy
    with pytest.raises(PolyrhythmError, match=message):
        resolved(words)


def test_all_terms_of_a_search_can_be_given(words: list[str]) -> None:
    found = read_pilot([*("--target", "0.9", "--walk", "first-failure", "--baseline-runs", "5", "--two-sided"), *words])
    assert found is not None
    plan = pilot.plan_of(found)
    assert (plan.target, plan.walk, plan.baseline_runs, plan.two_sided, plan.runs) == (0.9, "first-failure", 5, True, 3)
    found = read_pilot(["--algorithm-1", "--walk", "first-failure", *words])
    assert found is not None
    plan = pilot.plan_of(found)
    assert (plan.walk, plan.two_sided, plan.error_rate, plan.early) == ("bisect", True, 0.5, 0.0)


def test_data_are_part_of_the_job(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pilot, "piloted_trial", lambda pilot, trial: knee(0.3)(trial))
    data = tmp_path / "data.bin"
    data.write_bytes(b"1")
    resolved(with_search(["--data", str(data), *words]))
    assert resolved(["--data", str(data), *words])
    data.write_bytes(b"2")
    with pytest.raises(PolyrhythmError, match="no switch point is known"):
        resolved(["--data", str(data), *words])


@pytest.mark.parametrize(
    ("metric", "message"),
    [("(", "is no regular expression"), (r"top1 (\S+) (\S+)", "has 2 groups; give it one that is a number")],
)
def test_a_metric_that_finds_nothing_is_refused_before_a_run(words: list[str], metric: str, message: str) -> None:
    with pytest.raises(PolyrhythmError, match=message):
        read_pilot(["--metric", metric, *words])


def test_the_first_run_of_a_search_asks_for_the_epochs_that_later_ones_count(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read_pilot(words)
    assert found is not None
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\n[ "${PILOT}" = 1 ] && echo accuracy 0.5\n', encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    assert piloted_trial(found, TRIAL).accuracy == 0.5
    baseline = JobConfig(policy="switch:bsp@1,asp")
    refuse_shares(baseline)
    monkeypatch.setenv(PILOT, "1")
    with pytest.raises(PolyrhythmError, match="nobody has said how many there are"):
        refuse_shares(baseline)


@pytest.mark.parametrize("hosts", ["2", "1:2"])
def test_a_search_on_several_hosts_is_refused(words: list[str], made: list[SearchTrial], hosts: str) -> None:
    """Each host would search by itself, and the accuracy is printed on one."""
    several = ["--nnodes", hosts, "--job-family", "digits"]
    with pytest.raises(PolyrhythmError, match=f"--search cannot go with --nnodes {hosts}: each host would search"):
        resolved([*several, *with_search(words)])
    assert not made
    found = resolved([*several, "--on", "ray", *with_search(words)])
    assert found == [*several[:2], "--on", "ray", *words[:4], "--policy", "switch:bsp@0.375,asp", *words[6:8], "0"]
    assert "switch:bsp@0.375,asp" in resolved([*several, *words]), "a point that is known holds on all hosts"


def test_a_search_by_each_task_of_slurm_is_refused(
    words: list[str], made: list[SearchTrial], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_NTASKS", "2")
    with pytest.raises(PolyrhythmError, match="--search cannot go with workers that Slurm or RANK and WORLD_SIZE"):
        resolved(with_search(words[2:]))
    assert not made


@pytest.mark.parametrize("flag", ["--job-family", "--store", "--metric"])
def test_a_flag_without_a_value_is_refused(words: list[str], flag: str) -> None:
    """As of a variable of a shell that is not set: the job would be one of no family."""
    with pytest.raises(PolyrhythmError, match=f"^{flag} has no value; give one or leave it out$"):
        read_pilot([f"{flag}=", *words])


def test_pilots_neither_keep_checkpoints_nor_go_on_from_one(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a candidate would be judged by what the baseline has trained."""
    python = tmp_path / "python"
    told = '[ -z "$POLYRHYTHM_CHECKPOINT$POLYRHYTHM_EVERY" ] && echo accuracy 0.5; echo $* > told'
    python.write_text(f"#!/bin/sh\n{told}\n", encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "executable", str(python))
    without = read_pilot(words)
    monkeypatch.setenv("POLYRHYTHM_CHECKPOINT", "there")
    (tmp_path / "job.toml").write_text("every = '5m'\n", encoding="utf-8")
    found = read_pilot(["--config", "job.toml", "--checkpoint=here", "--keep", "2", *words])
    assert found is not None
    assert without is not None
    assert piloted_trial(found, TRIAL).accuracy == 0.5
    assert not any(name in Path("told").read_text(encoding="utf-8") for name in ("--checkpoint", "--every", "--keep"))
    assert job_of(found) == job_of(without)
    assert {"--checkpoint=here", "--every=5m"} <= {*found.command("asp", 0)}, "the run at the point keeps them"


def test_the_number_of_the_run_goes_to_the_script(words: list[str]) -> None:
    found = read_pilot(words)
    assert found is not None
    assert found.command("bsp", 7)[-2:] == ["--seed", "7"]


@pytest.mark.parametrize("seed", ["{run}", "7"])
def test_runs_that_may_all_be_the_same_are_said(
    words: list[str], made: list[SearchTrial], capsys: pytest.CaptureFixture[str], seed: str
) -> None:
    resolved([*with_search(words)[:-1], seed])
    line = "no argument of the script has {run}, so runs may be the same one, whose spread tells nothing"
    assert (line in capsys.readouterr().err) == (seed == "7")
    resolved([*with_search(words)[:-1], seed])
    assert line not in capsys.readouterr().err, "nothing is run any more"


def test_a_script_that_is_no_file_is_refused(words: list[str]) -> None:
    words[6] = "none.py"
    with pytest.raises(PolyrhythmError, match=r"'none\.py' is no file"):
        resolved(words)


def test_a_pilot_that_diverges_fails_and_costs_what_it_ran(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read_pilot(words)
    assert found is not None
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\n[ "$4 $5" = "--on-divergence end" ] && exit 3\n', encoding="utf-8")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    outcome = piloted_trial(found, TRIAL)
    assert outcome.diverged
    assert outcome.spent_s == outcome.time_s > 0


def test_a_pilot_ends_with_us_and_in_its_own_way(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = read_pilot(words)
    assert found is not None
    python, how = tmp_path / "python", tmp_path / "how"
    python.write_text(
        f"#!{sys.executable}\nimport os, signal, sys\n"
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(open({str(how)!r}, 'w').write('in good order') and 0))\n"
        "os.kill(os.getppid(), signal.SIGTERM)\nsignal.pause()\n",
        encoding="utf-8",
    )
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(KeyboardInterrupt), early_end.by_signals():
        piloted_trial(found, TRIAL)
    assert how.read_text(encoding="utf-8") == "in good order"


def test_the_last_accuracy_counts() -> None:
    assert accuracy_in("epoch 0: accuracy 0.5\nepoch 1: accuracy = 0.75\n", pilot.METRIC, TRIAL) == 0.75
    assert accuracy_in("accuracy: nan", pilot.METRIC, TRIAL) is None
    assert accuracy_in("top1 0.5", r"top1 (\S+)", TRIAL) == 0.5


@pytest.mark.parametrize(
    ("output", "metric", "message"),
    [
        ("nothing", pilot.METRIC, "run 0 printed nothing that --metric"),
        ("accuracy 91.2", pilot.METRIC, "must be a share of 1"),
        ("top1 x", r"top1 (\S+)", "give it one group that is a number"),
    ],
)
def test_an_output_without_an_accuracy_is_one_line(output: str, metric: str, message: str) -> None:
    with pytest.raises(PolyrhythmError, match=message):
        accuracy_in(output, metric, TRIAL)
