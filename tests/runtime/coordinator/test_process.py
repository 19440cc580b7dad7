"""A coordinator's process: what it is asked for, and when no other one would fare better."""

from pathlib import Path

import msgspec
import pytest

from polyrhythm.errors import BROKEN, SpecError, UsageError
from polyrhythm.runtime.coordinator import process
from polyrhythm.runtime.coordinator.process import CoordinatorOrder, read_order
from polyrhythm.runtime.wire.job_config import JobConfig


def test_one_that_nobody_could_follow_says_in_one_line_why(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def miss_policy(*_: object, **__: object) -> None:
        raise SpecError("policy file 'mine.py' does not exist")

    monkeypatch.setattr(process, "CoordinatorServer", miss_policy)
    monkeypatch.setattr(process, "prepare", bool)
    assert process.serve(JobConfig(workers=1), []) == BROKEN
    assert [record.message for record in caplog.records] == [
        "cannot serve the job: policy file 'mine.py' does not exist"
    ]


def test_one_that_another_one_could_follow_is_no_such_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name may be in use for a moment, by a server of the coordinator before."""

    def find_in_use(*_: object, **__: object) -> None:
        raise UsageError("cannot listen on unix:@mine: the name is in use")

    monkeypatch.setattr(process, "CoordinatorServer", find_in_use)
    monkeypatch.setattr(process, "prepare", bool)
    with pytest.raises(UsageError):
        process.serve(JobConfig(workers=1), [])


def test_an_order_that_names_a_file_that_is_gone_says_so(tmp_path: Path) -> None:
    order = msgspec.json.encode(CoordinatorOrder(JobConfig(workers=1, policy="asp")))
    assert read_order(order).config.policy == "asp"
    with pytest.raises(UsageError, match=r"policy file '.*mine.py' does not exist"):
        read_order(order.replace(b'"asp"', f'"{tmp_path}/mine.py:Mine"'.encode()))
    with pytest.raises(msgspec.ValidationError):
        read_order(b"[]")
