"""What ranks tell each other of what they read."""

import sys
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import pytest
from torch.distributed import HashStore  # type: ignore[attr-defined]

from polyrhythm.errors import GroupError
from polyrhythm.runtime.script.data import handed
from polyrhythm.runtime.script.data.handed import HandedData, all_told
from polyrhythm.runtime.script.script_group import ScriptGroup

KEYS = ["rank-0", "rank-1", "rank-2"]


class Later(HashStore):
    """Has what a rank tells only after so many questions."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.asked, self.after = 0, after
        self.set("rank-0", "reads")
        self.set("rank-2", "reads")

    def check(self, keys: list[str]) -> bool:
        self.asked += 1
        if self.asked == self.after:
            self.set("rank-1", "reads")
        return bool(super().check(keys))


def group(store: Any, limit: timedelta) -> Any:
    return Mock(store=store, timeout=limit, failure=None, rank=lambda: 0)


def test_ranks_that_begin_late_are_waited_for_and_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one that evaluates first; without DistributedDataParallel nothing holds the others until then."""
    monkeypatch.setattr(handed, "PATIENCE_S", -1.0)
    assert all_told(group(Later(after=9), timedelta(hours=1)), KEYS)
    said = capsys.readouterr().err
    assert said.endswith("rank 0 waits up to 300 s until all have made their first step; [1] have not\n")
    assert said.count("waits up to") == 1


def test_the_limit_is_that_of_a_collective() -> None:
    with pytest.raises(GroupError, match="not all ranks have ended the first step within 0 s of this one"):
        all_told(group(Later(after=99), timedelta(0)), KEYS)


def test_nobody_waits_for_ranks_of_which_one_is_lost() -> None:
    lost = group(Later(after=99), timedelta(hours=1))
    lost.failure = "a member is gone"
    assert not all_told(lost, KEYS)


def test_what_a_rank_reads_is_asked_in_its_first_step_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes some thirty calls, and every step of the training comes here."""
    store, reads = HashStore(), Mock(return_value="is dealt: [4]")
    world = Mock(spec=ScriptGroup, store=store, rank=lambda: 1)
    monkeypatch.setattr(handed, "dist", Mock(group=Mock(WORLD=world)))
    handed_data = HandedData(training=0)
    for _ in range(3):
        handed_data.stepped(sys._getframe(), reads)
    assert store.get("training-0-rank-1") == b"is dealt: [4]"
    assert reads.call_count == 1
