"""Folders for what need not outlive a process, which may be killed."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from polyrhythm.telemetry import folders
from polyrhythm.telemetry.folders import PREFIX, OwnFolder, remove_left, temporary_folder

KILLED = """
import os, signal
from pathlib import Path
from polyrhythm.telemetry.folders import OwnFolder

folder = OwnFolder()
Path(folder.name, "file").touch()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where temporary files are."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_what_a_killed_process_leaves_is_gone_with_the_next_folder(place: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(place)}
    done = subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False)
    (left,) = place.iterdir()
    assert (done.returncode, (left / "file").exists()) == (-signal.SIGKILL, True)
    with temporary_folder() as name:
        assert [*place.iterdir()] == [Path(name)]
    assert [*place.iterdir()] == []


def test_what_lives_and_what_is_not_ours_stays(place: Path) -> None:
    (place / "polyrhythm-other").mkdir()
    (place / f"{PREFIX}file").touch()
    (place / "elsewhere").mkdir()
    (place / f"{PREFIX}link").symlink_to(place / "elsewhere")
    with OwnFolder() as name:
        before = {*place.iterdir()}
        remove_left()
        assert {*place.iterdir()} == before
        assert Path(name) in before


def test_a_folder_that_was_taken_for_a_left_one_is_made_anew(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is removed after it was made, or once more after it was opened."""
    lock, gone = folders.locked, list[str]()

    def late(folder: str) -> int:
        if len(gone) < 2:
            gone.append(folder)
            if len(gone) == 1:
                Path(folder).rmdir()
                return lock(folder)
            descriptor = lock(folder)
            Path(folder).rmdir()
            return descriptor
        return lock(folder)

    monkeypatch.setattr(folders, "locked", late)
    with OwnFolder() as name:
        assert name not in gone
        assert [str(path) for path in place.iterdir()] == [name]


def test_a_forked_process_leaves_it(place: Path) -> None:
    with OwnFolder() as name:
        child = os.fork()
        if not child:
            folders.remove(name, os.open(name, os.O_RDONLY), os.getppid())
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert Path(name).exists()
