"""Ranks that were removed stay away as long as their job runs."""

from pathlib import Path

import pytest

from polyrhythm.errors import UsageError
from polyrhythm.runtime.wire.recovery.removed import REMOVED, check_not_removed, is_removed, tell_removed


def test_whoever_is_told_of_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "removed").touch()
    monkeypatch.setenv(REMOVED, str(tmp_path / "removed"))
    tell_removed(12)
    tell_removed(3)
    assert [is_removed(rank) for rank in (1, 2, 3, 12)] == [False, False, True, True]
    check_not_removed(1)
    with pytest.raises(UsageError, match=r"^rank 3 was removed from this job, and stays away$"):
        check_not_removed(3)


def test_without_a_launcher_nobody_stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(REMOVED, raising=False)
    tell_removed(3)
    assert not is_removed(3)
