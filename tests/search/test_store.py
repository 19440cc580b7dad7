"""The search survives its process, whenever that is killed."""

import multiprocessing
import os
import random
import signal
import sqlite3
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest

from polyrhythm.errors import PolyrhythmError
from polyrhythm.search.loop import search
from polyrhythm.search.plan import SearchPlan, SearchTrial, TrialOutcome
from polyrhythm.search.runners import SerialRunner
from polyrhythm.search.store import TrialStore
from tests.search.jobs import knee

JOB, PLAN = "job", SearchPlan(runs=4)
POINTS = ("in the trial", "before it is kept", "half kept", "after it is kept")


class Diary:
    """What a process has done, on disk at once; the process kills itself at a given entry."""

    def __init__(self, path: Path, fatal: tuple[str, int] | None) -> None:
        self.path, self.fatal, self.counts = path, fatal, dict.fromkeys(POINTS, 0)

    def note(self, point: str, trial: SearchTrial) -> None:
        with open(self.path, "a", encoding="utf-8") as stream:
            stream.write(f"{point}|{trial.spec}|{trial.run}\n")
        self.counts[point] += 1
        if self.fatal == (point, self.counts[point]):
            os.kill(os.getpid(), signal.SIGKILL)


class WatchedStore(TrialStore):
    def __init__(self, path: Path, diary: Diary) -> None:
        super().__init__(path)
        self.diary = diary

    def add(self, job: str, outcome: TrialOutcome) -> None:
        self.diary.note("before it is kept", outcome.trial)
        connection = sqlite3.connect(self.path)
        values = (job, outcome.trial.spec, outcome.trial.run, b"{}")
        connection.execute("INSERT INTO outcomes VALUES (?, ?, ?, ?)", values)
        self.diary.note("half kept", outcome.trial)
        connection.rollback()
        connection.close()
        super().add(job, outcome)
        self.diary.note("after it is kept", outcome.trial)


def trial_of(diary: Diary, trial: SearchTrial) -> TrialOutcome:
    diary.note("in the trial", trial)
    return knee(0.3)(trial)


def process(folder: Path, fatal: tuple[str, int] | None) -> None:
    diary = Diary(folder / "diary", fatal)
    search(PLAN, SerialRunner(partial(trial_of, diary)), WatchedStore(folder / "store.db", diary), JOB)


def lives(folder: Path, deaths: Sequence[tuple[str, int]]) -> list[int | None]:
    """Run the search in one process after the other; their exit codes."""
    codes = []
    for fatal in [*deaths, None]:
        child = multiprocessing.get_context("fork").Process(target=process, args=(folder, fatal))
        child.start()
        child.join(60)
        codes.append(child.exitcode)
    return codes


def test_killed_at_ten_moments_it_comes_to_the_same_answer_and_repeats_nothing(tmp_path: Path) -> None:
    rng = random.Random(4)
    deaths = [(rng.choice(POINTS), rng.randint(1, 2)) for _ in range(10)]
    assert {point for point, _ in deaths} == set(POINTS)
    assert lives(tmp_path, deaths) == [-signal.SIGKILL] * 10 + [0]
    store = TrialStore(tmp_path / "store.db")
    alone = search(PLAN, SerialRunner(knee(0.3)), TrialStore(tmp_path / "other.db"), JOB)
    assert store.outcomes(JOB) == alone.state.outcomes
    assert store.answer(JOB) == alone.spec
    entries = (tmp_path / "diary").read_text(encoding="utf-8").splitlines()
    kept: set[str] = set()
    for entry in entries:
        point, _, trial = entry.partition("|")
        assert point != "in the trial" or trial not in kept, f"{trial} was repeated"
        if point == "after it is kept":
            assert trial not in kept
            kept.add(trial)
    assert len(kept) == len(alone.state.outcomes)


def test_a_job_that_recurs_is_answered_without_a_trial(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "store.db")
    first = search(PLAN, SerialRunner(knee(0.3)), store, JOB)

    def never(trial: SearchTrial) -> TrialOutcome:
        raise AssertionError(trial)

    again = search(PLAN, SerialRunner(never), TrialStore(tmp_path / "store.db"), JOB)
    assert (again.spec, again.progress) == (first.spec, first.progress)
    assert len(again.known) == len(first.state.outcomes)
    assert store.answer(JOB) == first.spec
    assert store.answer("another") is None
    assert store.outcomes("another") == ()


def test_another_plan_uses_the_trials_that_are_there(tmp_path: Path) -> None:
    store, asked = TrialStore(tmp_path / "store.db"), list[SearchTrial]()

    def counted(trial: SearchTrial) -> TrialOutcome:
        asked.append(trial)
        return knee(0.3)(trial)

    search(SearchPlan(settings=2), SerialRunner(counted), store, JOB)
    first = len(asked)
    search(SearchPlan(settings=4), SerialRunner(counted), store, JOB)
    assert len(set(asked)) == len(asked) > first


def test_trials_of_another_knob_cost_this_search_nothing(tmp_path: Path) -> None:
    store = TrialStore(tmp_path / "searches.db")
    for share in (0.9, 0.7):
        store.add(JOB, knee(0.3)(SearchTrial(f"switch:bsp@{share:g},asp", 0)))
    found = search(PLAN, SerialRunner(knee(0.3)), store, JOB)
    alone = search(PLAN, SerialRunner(knee(0.3)), TrialStore(tmp_path / "other.db"), JOB)
    assert (found.state, found.cost, found.known) == (alone.state, alone.cost, frozenset())


def test_a_trial_is_kept_once(tmp_path: Path) -> None:
    store, outcome = TrialStore(tmp_path / "store.db"), TrialOutcome(SearchTrial("x", 0), 0.9, 1.0, 1.0)
    store.add(JOB, outcome)
    store.add(JOB, TrialOutcome(SearchTrial("x", 0), 0.5, 1.0, 1.0))
    assert store.outcomes(JOB) == (outcome,)


def test_a_file_that_is_no_store_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("this is not a database " * 100, encoding="utf-8")
    with pytest.raises(PolyrhythmError, match="file is not a database; name another file with --store"):
        TrialStore(path)
    with pytest.raises(PolyrhythmError, match="cannot be made"):
        TrialStore(path / "below" / "store.db")


def test_a_store_that_cannot_be_written_is_said_before_a_trial(tmp_path: Path) -> None:
    """Not after it: one can take hours. To SQLite a file of a format to come is one that it can only read."""
    path = tmp_path / "searches.db"
    TrialStore(path)
    content = bytearray(path.read_bytes())
    content[18] = 3
    path.write_bytes(content)

    def never(trial: SearchTrial) -> TrialOutcome:
        raise AssertionError(trial)

    with pytest.raises(PolyrhythmError, match="readonly database; name another file with --store"):
        search(PLAN, SerialRunner(never), TrialStore(path), JOB)
    assert TrialStore(path).outcomes(JOB) == (), "it can be read"


@pytest.mark.parametrize("content", ["[1", "[1]", '{"--nnodes": 1}', 7, None, "[" * 100_000])
def test_a_family_that_cannot_be_read_is_one_line(tmp_path: Path, content: object) -> None:
    store = TrialStore(tmp_path / "searches.db")
    with sqlite3.connect(store.path) as connection:
        connection.execute("INSERT INTO families VALUES (?, ?)", ("digits", content))
    with pytest.raises(PolyrhythmError, match=r"the job family 'digits' that cannot be read: .*; name another file"):
        store.agree("digits", {"--nnodes": "1"})


@pytest.mark.parametrize("content", [b"", b"{}", b"no JSON", b"\xff\xfe", 7, None, "[" * 100_000])
def test_a_row_that_cannot_be_read_is_one_line(tmp_path: Path, content: object) -> None:
    store = TrialStore(tmp_path / "searches.db")
    with sqlite3.connect(store.path) as connection:
        connection.execute("INSERT INTO outcomes VALUES (?, ?, ?, ?)", (JOB, "bsp", 0, content))
    with pytest.raises(PolyrhythmError, match=r"outcome of job 'job' that cannot be read: .*; name another") as one:
        store.outcomes(JOB)
    assert "\n" not in str(one.value)
