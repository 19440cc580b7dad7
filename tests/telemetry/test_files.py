"""Folders that cannot be written in, and files that are there as a whole or as they were."""

import os
from pathlib import Path

import pytest

from polyrhythm.errors import UsageError
from polyrhythm.telemetry import files
from polyrhythm.telemetry.files import make_folder, write_whole
from tests.full_disk import cut_short


def test_a_file_is_written_as_a_whole_and_keeps_its_mode(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    write_whole(path, b"one")
    path.chmod(0o600)
    write_whole(path, b"two")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"two", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_mode_that_files_have_here(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    write_whole(tmp_path / "out.json", b"one")
    assert (tmp_path / "out.json").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_full_disk_leaves_what_was_there_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "out.json"
    write_whole(path, b"one")
    cut_short(monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"two")
    assert [each.name for each in tmp_path.iterdir()] == ["out.json"]
    with path.open("rb") as stream:
        assert stream.read() == b"one"


def test_what_a_link_or_a_descriptor_names_is_written_itself(tmp_path: Path) -> None:
    """As /dev/stdout, which may be a file that more is written to."""
    target = tmp_path / "target"
    with target.open("w+b") as stream:
        for path in (Path(f"/dev/fd/{stream.fileno()}"), tmp_path / "link"):
            if not path.exists():
                path.symlink_to(target)
            write_whole(path, path.name.encode())
            assert os.path.samestat(os.fstat(stream.fileno()), target.stat())
            assert target.read_bytes() == path.name.encode()


def test_a_file_in_a_folder_that_takes_no_others_is_written_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is in the way of root, who runs these tests here and there, so the refusal is played."""
    path, write_bytes = tmp_path / "out.json", Path.write_bytes
    path.write_bytes(b"one")

    def refuse_others(other: Path, data: bytes) -> int:
        if other != path:
            raise PermissionError
        return write_bytes(other, data)

    monkeypatch.setattr(Path, "write_bytes", refuse_others)
    write_whole(path, b"two")
    assert path.read_bytes() == b"two"


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
