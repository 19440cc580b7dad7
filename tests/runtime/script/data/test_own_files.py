"""What a rank of a script for a single process does with files, in the place of what only the first rank may."""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from polyrhythm.runtime.script.data.own_files import OwnFiles

CALLS = Path(__file__).parents[1] / "scripts" / "calls.py"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OwnFiles:
    (tmp_path / "shared").mkdir()
    monkeypatch.chdir(tmp_path / "shared")
    return OwnFiles()


def write(files: OwnFiles, path: str, text: str, mode: str = "w") -> None:
    with open(files.place(path, mode), mode, encoding="utf-8") as out:
        out.write(text)


def read(files: OwnFiles, path: str) -> str:
    return Path(files.place(path, "r")).read_text(encoding="utf-8")


@pytest.mark.parametrize("mode", ["a", "r+"])
def test_what_is_written_on_begins_with_what_is_there(files: OwnFiles, mode: str) -> None:
    Path("log").write_text("first\n", encoding="utf-8")
    write(files, "log", "other\n", mode)
    assert read(files, "log") == ("first\nother\n" if mode == "a" else "other\n")
    assert Path("log").read_text(encoding="utf-8") == "first\n"


def test_a_file_that_is_not_there_is_not_opened_for_update(files: OwnFiles) -> None:
    assert files.place("log", "r+") == os.path.realpath("log")
    Path("log").touch()
    assert files.own("log") is None


def test_what_is_moved_or_removed_is_gone(files: OwnFiles) -> None:
    Path("a").touch()
    for name in "ab":
        write(files, name, name)
    files.move("a", "b")
    assert read(files, "b") == "a"
    with pytest.raises(FileNotFoundError):
        read(files, "a")
    files.remove("a")  # as it may still be listed
    assert Path("a").exists(), "it is the first rank's"
    Path("a").unlink()
    with pytest.raises(FileNotFoundError):
        files.remove("a")
    files.remove("b")
    with pytest.raises(FileNotFoundError):
        files.move("b", "c")
    write(files, "b", "again")
    assert read(files, "b") == "again"


def test_the_first_ranks_files_stay(files: OwnFiles) -> None:
    Path("a").write_text("first", encoding="utf-8")
    write(files, "b", "own")
    files.remove("a")
    files.move("a", "b")
    assert files.own("b") is None, "it is what the first rank moves there"
    assert os.listdir() == ["a"]  # noqa: PTH208


def test_a_folder_takes_what_is_in_it_along(files: OwnFiles) -> None:
    write(files, "half/model", "1")
    files.move("half", "whole")
    assert read(files, "whole/model") == "1"
    files.remove_tree("whole")
    with pytest.raises(FileNotFoundError):
        read(files, "whole/model")


def test_a_link_is_a_second_name(files: OwnFiles) -> None:
    write(files, "step-1", "1")
    write(files, "step-2", "2")
    for number in (1, 2):
        files.link(f"step-{number}", "latest")
        assert read(files, "latest") == str(number)
    files.remove("latest")
    assert read(files, "step-2") == "2"


def test_a_temporary_file_is_moved_to_an_own_one(files: OwnFiles) -> None:
    with tempfile.NamedTemporaryFile("w", dir=".", delete=False, encoding="utf-8") as out:
        out.write("own")
    files.leave(out.name)
    assert files.place(out.name, "a") == out.name
    files.move(out.name, "final")
    assert read(files, "final") == "own"
    assert os.listdir() == []  # noqa: PTH208


@pytest.mark.parametrize("path", ["/dev/null", ".", 3])
def test_what_is_no_file_is_left_alone(files: OwnFiles, path: str | int) -> None:
    assert files.place(path, "w") == path


@pytest.mark.parametrize("mode", ["w", "a", "w+b"])
def test_a_file_that_is_open_goes_on_as_an_own_one(files: OwnFiles, mode: str) -> None:
    file, closed = open("log", mode), open("closed", mode)  # noqa: SIM115
    words = (lambda text: text.encode()) if "b" in mode else str
    file.write(words("1"))
    file.flush()
    file.write(words("2"))
    for each in (file, closed):
        files.remember(each, each.name)
    closed.close()
    files.begin()
    assert Path("log").read_text(encoding="utf-8") == "1"
    file.write(words("3"))
    file.close()
    assert Path("log").read_text(encoding="utf-8") == "1"
    assert read(files, "log") == "123"


def test_a_forked_child_has_places_of_its_own(files: OwnFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    write(files, "a", "parent")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert "/-1-" in files.place("b", "w")


def test_calls_of_a_script_go_there_and_those_of_libraries_do_not(tmp_path: Path) -> None:
    (tmp_path / "site-packages").mkdir()
    shutil.copy(CALLS, tmp_path / "site-packages" / "library.py")
    shutil.copy(CALLS, tmp_path / "script.py")
    for place, made in (
        ("script.py", {"kept", "full"}),
        ("site-packages/library.py", {"a", "b", "c", "full", "whole"}),
    ):
        folder = tmp_path / f"of {Path(place).stem}"
        folder.mkdir()
        subprocess.run([sys.executable, tmp_path / place], cwd=folder, check=True, timeout=60)
        assert {path.name for path in folder.iterdir()} == made
