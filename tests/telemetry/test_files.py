"""What is said of folders that cannot be written in, before anything runs."""

from pathlib import Path

import pytest

from polyrhythm.errors import UsageError
from polyrhythm.telemetry import files
from polyrhythm.telemetry.files import make_folder


def test_a_folder_that_cannot_be_written_in_is_named_as_it_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It named a file of ours, `.writable`, that nobody has asked for."""

    def refuse(path: Path) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(files, "try_to_write", refuse)
    with pytest.raises(UsageError) as refused:
        make_folder("--trace", tmp_path)
    assert str(refused.value) == f"--trace {str(tmp_path)!r} cannot be written in: Read-only file system"


def test_a_folder_is_made_and_left_empty(tmp_path: Path) -> None:
    make_folder("--trace", tmp_path / "a" / "b")
    assert list((tmp_path / "a" / "b").iterdir()) == []
