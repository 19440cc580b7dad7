"""Refusals that a script catches are known at its end, and nothing is kept for that but a line."""

import os
import weakref
from unittest.mock import Mock

import pytest

from polyrhythm.errors import NotedRefusalError, RefusalError
from polyrhythm.runtime.script.notices import caught, overlook, refuse, script_line


class Batch:
    """What a frame of the script has."""


@pytest.fixture(autouse=True)
def none_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NotedRefusalError, "first", None)
    monkeypatch.setattr(NotedRefusalError, "alive", weakref.WeakSet())


def step(problem: str, batch: Batch) -> None:
    raise refuse(problem, f"train.py:{id(batch)}")


def catch(problem: str) -> "weakref.ref[Batch]":
    batch = Batch()
    with pytest.raises(RefusalError, match=problem) as error:
        step(problem, batch)
    del error
    return weakref.ref(batch)


def test_the_first_that_is_caught_is_known_and_what_its_frames_have_is_free() -> None:
    unraised = [refuse("nothing follows from this") for _ in range(20)]
    freed = [catch(f"problem {number}") for number in range(3)]
    assert caught().endswith(": problem 0")
    assert [ref() for ref in freed] == [None, None, None]
    assert len(unraised) == 20


def test_one_that_the_script_keeps_is_known_too() -> None:
    try:
        step("kept", Batch())
    except RefusalError as error:
        kept = error
    catch("later")
    assert caught().endswith(": kept")
    assert str(kept) == caught()
    kept.__traceback__ = None  # which has this frame; else it would be noted when garbage is collected, in another test


def test_what_we_catch_ourselves_is_none() -> None:
    try:
        step("ours", Batch())
    except RefusalError as error:
        overlook(error)
    assert caught() == ""


def test_where_files_are_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line of the script is asked for at each collective of its loop."""
    line = script_line()
    monkeypatch.setattr(os, "lstat", Mock(side_effect=AssertionError("looked up again")))
    assert script_line().partition(":")[0] == line.partition(":")[0]
