"""What is said where members cannot lend their vectors."""

import errno
import os
import resource
from pathlib import Path
from typing import NoReturn

import pytest

from polyrhythm.runtime.collectives.shared import lent
from polyrhythm.runtime.collectives.shared.lent import SPARED
from polyrhythm.runtime.collectives.shared.words import PROCESS
from tests.runtime.collectives.shared.test_buffers import FLOATS
from tests.runtime.collectives.shared.test_lent import drawn, lend, limited, two


@pytest.fixture(autouse=True)
def nothing_said() -> None:
    """As in a new process."""
    lent.tell_copied.cache_clear()


COPIED = "polyrhythm: long vectors are copied at each exchange, which takes longer: "
OBSTACLES: dict[str, tuple[dict[str, object], str]] = {
    "room": ({"room": lambda: 0}, "/dev/shm has not 8 MB free; enlarge it, as with docker run --shm-size"),
    "disk": (
        {"room": lambda: 0, "file_system_of": lambda _: "ext4"},
        "/dev/shm is no tmpfs but ext4; mount a tmpfs there",
    ),
    "unknown": (
        {"room": lambda: 0, "file_system_of": lambda _: ""},
        "/dev/shm is no tmpfs; mount a tmpfs there",
    ),
    "nowhere": ({"ROOM": Path("/no/shm")}, "/no/shm is not there; mount a tmpfs there"),
    "descriptors": (
        {"spares_descriptors": lambda: False},
        f"this process has fewer than {SPARED} free descriptors; raise ulimit -n",
    ),
}


@pytest.mark.parametrize("name", OBSTACLES)
def test_why_nothing_is_lent_is_said_once(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attributes, why = OBSTACLES[name]
    for attribute, value in attributes.items():
        monkeypatch.setattr(lent, attribute, value)
    (vector, other) = drawn(2, FLOATS, 500_000)
    for _ in range(2):  # generations
        lender, _ = two()
        assert [lender.lend(each) for _ in range(3) for each in (vector, other)] == [False] * 6
    assert capsys.readouterr().err == f"{COPIED}{why}\n"


def test_one_process_of_a_host_says_why_nothing_is_lent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "said").touch()
    monkeypatch.setenv("POLYRHYTHM_SAID", str(tmp_path / "said"))
    for why in ("one reason", "another"):
        lent.tell_copied.cache_clear()  # as in another process
        lent.tell_copied(why)
    assert capsys.readouterr().err == f"{COPIED}one reason\n"


def test_a_limit_that_forbids_a_move_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    lender, _ = two()
    (vector, _) = drawn(2, FLOATS)
    with limited(resource.RLIMIT_FSIZE, vector.nbytes // 2):
        assert [lender.lend(vector) for _ in range(2)] == [False, False]
    said = capsys.readouterr().err
    assert said.startswith(f"{COPIED}/dev/shm: ")
    assert said.endswith("File too large (27); see ulimit -f and ulimit -n\n")
    assert "torch_" not in said


def test_a_member_that_may_not_open_what_is_lent_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (lender, borrowed), (vector, _) = two(), drawn(2, FLOATS)
    lend(lender, vector)

    def refuse(path: object, _: int) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refuse)
    assert not borrowed.open(vector.nbytes)
    assert capsys.readouterr().err == (
        f"{COPIED}a process may not open the memory of another (Permission denied); run all of a host as one user\n"
    )


def test_nothing_is_said_of_a_process_that_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    (lender, borrowed), (vector, _) = two(), drawn(2, FLOATS)
    lend(lender, vector)
    borrowed._columns[PROCESS][0] = 2**22 + 1
    assert not borrowed.open(vector.nbytes)
    assert capsys.readouterr().err == ""
