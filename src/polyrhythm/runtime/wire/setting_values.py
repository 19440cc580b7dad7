"""What a setting may be: durations, names of jobs, one of several words; and how messages call each."""

import re
from typing import Any, Literal, get_args, get_origin

from polyrhythm.errors import UsageError

MOST_NAMED = 64
"""Characters of a job's name, which is part of the name of its socket and of files."""

SESSION = "the script's session"
"""A place where settings are given, as arguments."""

JOB_NAME = re.compile(rf"[A-Za-z0-9_-][A-Za-z0-9._-]{{0,{MOST_NAMED - 1}}}", re.ASCII)
JOB_NAME_WORDS = f"of letters, digits, dots, dashes and underscores, at most {MOST_NAMED}, and not begin with a dot"

DURATION = re.compile(r"(\d+(?:\.\d*)?)([smh]?)", re.ASCII)
DURATION_WORDS = "a duration of more than 0 seconds, such as 60s, 5m or 1h,"
LONGEST_S = 7 * 86400.0
"""Of all durations, so that the system's timers bear three times as much."""

LONGEST_WORDS = f"at most {LONGEST_S:.0f} s, which is 7 days,"
UNITS_S = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}

KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
"""How messages call a type."""


def seconds(duration: str) -> float:
    """A duration in seconds; 0 for what is none.

    >>> seconds("60s"), seconds("1.5m"), seconds("2h"), seconds("7"), seconds("soon")
    (60.0, 90.0, 7200.0, 7.0, 0.0)
    """
    found = DURATION.fullmatch(duration)
    return float(found[1]) * UNITS_S[found[2]] if found else 0.0


def is_job_name(name: str) -> bool:
    """Whether a job can be called so; none is a name that is still to be made.

    >>> is_job_name("fruit-7"), is_job_name("../fruit"), is_job_name("")
    (True, False, True)
    """
    return not name or JOB_NAME.fullmatch(name) is not None


def check_job_name(name: str, where: str) -> str:
    """The name of a job, if it can be one.

    Raises:
        UsageError: if it cannot; `where` is what it was given as.
    """
    if not name or not is_job_name(name):
        raise UsageError(f"{where} must be {JOB_NAME_WORDS} but got {name!r}")
    return name


def label(name: str, where: str) -> str:
    """A setting that was given somewhere.

    >>> label("hang_after", "--hang-after"), label("hang_after", "job.toml"), label("hang_after", SESSION)
    ('--hang-after', 'hang-after in job.toml', "hang_after in the script's session")
    """
    if where.startswith(("--", "POLYRHYTHM_", "PET_")):
        return where
    if where in ("", SESSION):  # a Python name
        return f"{name} in {where}" if where else name
    return f"{name.replace('_', '-')} in {where}"


def kind_words(kind: Any) -> str:
    """How a message calls a type.

    >>> kind_words(int), kind_words(str | None), kind_words(Literal["ring", "server"])
    ('a whole number', 'a text', 'ring or server')
    """
    if get_origin(kind) is Literal:
        return alternatives(get_args(kind))
    return KINDS[kind] if kind in KINDS else kind_words(get_args(kind)[0])


def alternatives(words: tuple[str, ...]) -> str:
    """One of these.

    >>> alternatives(("keep", "average", "reset"))
    'keep, average or reset'
    """
    return f"{', '.join(words[:-1])} or {words[-1]}"
