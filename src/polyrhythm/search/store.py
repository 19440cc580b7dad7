"""Outcomes of trials on disk: one SQLite file, so that a search survives its process and a job that recurs is known.

A trial is in the file completely or not at all, whenever the process is killed: each is one transaction, synchronised
to the disk before the next trial starts. (Optuna's storages are made for studies whose sampler needs its own history;
here the search is a function of the outcomes, so one table of them is all, and it needs no dependency.)
"""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from polyrhythm.errors import UsageError
from polyrhythm.search.plan import Knob, SearchPlan, TrialOutcome

StoredValue = TypeVar("StoredValue")

SCHEMA = """
CREATE TABLE IF NOT EXISTS outcomes (job TEXT, spec TEXT, run INTEGER, outcome BLOB, PRIMARY KEY (job, spec, run));
CREATE TABLE IF NOT EXISTS found (job TEXT, template TEXT, spec TEXT, plan BLOB, PRIMARY KEY (job, template));
CREATE TABLE IF NOT EXISTS families (name TEXT PRIMARY KEY, agreed TEXT);
"""


REMEDY = "name another file with --store or POLYRHYTHM_STORE"


class TrialStore:
    """Outcomes and answers by job.

    Args:
        path: of the file; it and its folder are made.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"store {str(path)!r} cannot be made: {error.strerror}") from error
        with self._open() as connection:
            connection.executescript(SCHEMA)

    @contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        """A connection for one transaction."""
        try:
            with closing(sqlite3.connect(self.path, timeout=60)) as connection:
                connection.execute("PRAGMA synchronous = FULL")
                with connection:
                    yield connection
        except sqlite3.Error as error:
            raise UsageError(f"store {str(self.path)!r}: {error}; {REMEDY}") from error

    def refuse_read_only(self) -> None:
        with self._open() as connection:
            connection.execute("DELETE FROM outcomes WHERE FALSE")  # BEGIN IMMEDIATE only reads such a file

    def outcomes(self, job: str) -> tuple[TrialOutcome, ...]:
        with self._open() as connection:
            rows = connection.execute("SELECT outcome FROM outcomes WHERE job = ? ORDER BY rowid", (job,)).fetchall()
        return tuple(self._read(row[0], TrialOutcome, f"an outcome of job {job!r}") for row in rows)

    def _read(self, data: Any, kind: type[StoredValue], what: str) -> StoredValue:
        try:
            return msgspec.json.decode(data, type=kind)
        except (ValueError, TypeError, RecursionError) as error:  # msgspec's own are ValueErrors
            raise UsageError(f"store {str(self.path)!r} has {what} that cannot be read: {error}; {REMEDY}") from None

    def add(self, job: str, outcome: TrialOutcome) -> None:
        """Keep an outcome; one that is there already stays, as when two searches ran the same trial."""
        trial, data = outcome.trial, msgspec.json.encode(outcome)
        with self._open() as connection:
            connection.execute("INSERT OR IGNORE INTO outcomes VALUES (?, ?, ?, ?)", (job, trial.spec, trial.run, data))

    def answer(self, job: str, template: str = Knob().template) -> str | None:
        """What a search of this template has found for this job."""
        row = self._found(job, template)
        return None if row is None else str(row[0])

    def searched(self, job: str, plan: SearchPlan, metric: str = "") -> bool:
        """Whether the answer for this job comes from a search with this plan and this metric."""
        row = self._found(job, plan.knob.template)
        return row is not None and row[1] == made_by(plan, metric)

    def _found(self, job: str, template: str) -> Any:
        with self._open() as connection:
            asked = "SELECT spec, plan FROM found WHERE job = ? AND template = ?"
            return connection.execute(asked, (job, template)).fetchone()

    def conclude(self, job: str, spec: str, plan: SearchPlan, metric: str = "") -> None:
        with self._open() as connection:
            values = (job, plan.knob.template, spec, made_by(plan, metric))
            connection.execute("INSERT OR REPLACE INTO found VALUES (?, ?, ?, ?)", values)

    def note_family(self, family: str, parts: Mapping[str, str]) -> None:
        """Note what the jobs of a family share, as its first answer is there; otherwise as `agree`."""
        with self._open() as connection:
            values = (family, msgspec.json.encode(dict(parts)).decode())
            connection.execute("INSERT OR IGNORE INTO families VALUES (?, ?)", values)
        self.agree(family, parts)

    def agree(self, family: str, parts: Mapping[str, str]) -> None:
        """Check that a job is of its family; a family without an answer has any job.

        Args:
            family: a name that the user has chosen.
            parts: what must be the same in all its jobs, by the name that a user knows.
        """
        with self._open() as connection:
            row = connection.execute("SELECT agreed FROM families WHERE name = ?", (family,)).fetchone()
        if row is None:
            return
        known = self._read(row[0], dict[str, str], f"the job family {family!r}")
        for name, value in parts.items():
            if known.get(name) != value:
                raise UsageError(
                    f"job family {family!r} was searched with {name} {known.get(name)}, and this job has {value}; "
                    "a switch point does not carry over: choose another --job-family"
                )


def made_by(plan: SearchPlan, metric: str) -> bytes:
    """What a search was asked for."""
    return msgspec.json.encode({"plan": plan, "metric": metric})
