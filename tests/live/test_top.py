"""`polyrhythm top` in a terminal of 80 columns and 24 lines."""

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
import tty
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from polyrhythm.errors import EndedError
from polyrhythm.live.top import Keyboard, wakes
from polyrhythm.runtime.launch import control_client as steer
from tests.runtime.jobs import job

LIMIT_S = 120.0


class Terminal:
    """What a command shows, and keys for it."""

    def __init__(self, *command: str, **environment: str) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        variables = {**os.environ, "TERM": "xterm-256color", **environment}
        self.process = subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=variables)
        os.close(theirs)
        self.shown = ""

    def until(self, text: str) -> None:
        """Wait until this is shown; what was shown before is forgotten."""
        deadline = time.monotonic() + LIMIT_S
        while text not in self.shown:
            ready, _, _ = select.select([self._ours], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} is not shown but {self.shown!r}"
            self.shown += os.read(self._ours, 65536).decode(errors="replace")
        self.shown = self.shown.partition(text)[2]

    def attributes(self) -> list[object]:
        """How the terminal treats keys."""
        return termios.tcgetattr(self._ours)

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._ours)


@contextmanager
def top(name: str, **environment: str) -> Iterator[Terminal]:
    terminal = Terminal(sys.executable, "-m", "polyrhythm", "top", name, **environment)
    try:
        yield terminal
    finally:
        terminal.close()


def idle(rank: int) -> None:
    """A worker that is not one."""


def test_a_job_is_seen_and_switched_with_keys() -> None:
    with job(idle, 1, name="topped") as running:
        with top("topped") as terminal:
            terminal.until("job topped  policy bsp")
            terminal.until("q quit")
            terminal.press("s")
            terminal.until("switch to policy")
            terminal.press("apx\n")
            terminal.until("not done: unknown policy 'apx'")
            terminal.press("s")
            terminal.until("switch to policy")
            terminal.press("asp\n")
            terminal.until("switching to asp")
            terminal.press("k")
            terminal.until("kill rank")
            terminal.press("3\n")
            terminal.until("rank 3 is not in this job")
            terminal.press("d")
            terminal.until("drain rank")
            terminal.press("x\n")
            terminal.until("a rank is a number such as 2, not 'x'")
            terminal.press("q")
            assert terminal.process.wait(LIMIT_S) == 0
        state = steer.status(steer.at("topped"))
        assert state.switching_to == "asp"
        (asked,) = [event.text for event in state.events if event.kind == "control"]
        assert asked.endswith("asks to switch to asp")
        steer.absent(steer.at("topped"), 0)
        running.join()


@pytest.mark.parametrize("keys", ["", "s"])
def test_sigterm_ends_it_at_a_question_too_and_leaves_the_terminal_as_it_was(keys: str) -> None:
    with job(idle, 1, name="topped-on") as running:
        with top("topped-on") as terminal:
            before = terminal.attributes()
            terminal.until("q quit")
            terminal.press(keys)
            terminal.until("switch to policy" if keys else "topped-on")
            terminal.process.terminate()
            terminal.until("polyrhythm: ended by SIGTERM")
            assert terminal.process.wait(LIMIT_S) == 143
            assert terminal.attributes() == before
        steer.absent(steer.at("topped-on"), 0)
        running.join()


def test_it_needs_no_colours_and_says_how_a_job_has_ended() -> None:
    with job(idle, 1, name="topped-plain") as running, top("topped-plain", NO_COLOR="1") as terminal:
        terminal.until("job topped-plain")
        steer.absent(steer.at("topped-plain"), 0)
        running.join()
        terminal.until("ended: no worker has joined")
        assert "\x1b[31m" not in terminal.shown
        terminal.press("q")
        assert terminal.process.wait(LIMIT_S) == 0


def test_keys_that_come_at_once_are_pressed_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    tty.setcbreak(theirs)
    with open(theirs, encoding="utf-8") as stdin, open(ours, "wb", buffering=0) as keys, wakes() as woken:
        monkeypatch.setattr(sys, "stdin", stdin)
        keys.write(b"s\xc3q")
        assert [Keyboard(woken).pressed(LIMIT_S) for _ in range(3)] == ["s", "\xc3", "q"]
        assert Keyboard(woken).pressed(0.0) == ""


def test_a_terminal_that_is_gone_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    with open(os.devnull, encoding="utf-8") as stdin, wakes() as woken:
        monkeypatch.setattr(sys, "stdin", stdin)
        assert Keyboard(woken).pressed(LIMIT_S) == "\x04"


def test_a_signal_that_interrupts_no_call_wakes_who_waits_for_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes to another thread here, as one that comes just before the wait interrupts no call either."""
    ours, theirs = pty.openpty()

    def ended(number: int, frame: object) -> None:
        raise EndedError

    def waited_for(woken: int) -> None:
        threading.Thread(target=lambda: signal.pthread_kill(threading.get_ident(), signal.SIGUSR2)).start()
        Keyboard(woken).wait(LIMIT_S)

    before = signal.signal(signal.SIGUSR2, ended)
    try:
        with open(theirs, encoding="utf-8") as stdin, wakes() as woken:
            monkeypatch.setattr(sys, "stdin", stdin)
            with pytest.raises(EndedError):
                waited_for(woken)
    finally:
        signal.signal(signal.SIGUSR2, before)
        os.close(ours)


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("ctl", "any", "remove", "x"), "ctl JOB remove needs a rank, as in: polyrhythm ctl JOB remove 2, but got 'x'"),
        (
            ("ctl", "any", "drain", "9" * 26),
            f"ctl JOB drain needs a rank, as in: polyrhythm ctl JOB drain 2, but got '{'9' * 26}'",
        ),
        (("ctl", "any", "drain"), "ctl JOB drain needs a rank, as in: polyrhythm ctl JOB drain 2, but got ''"),
        (("ctl", "any", "end", "now"), "ctl JOB end takes no argument but got 'now'; leave it out"),
        (("ctl", "any", "switch"), "ctl JOB switch needs a policy, as in: polyrhythm ctl JOB switch asp"),
    ],
)
def test_what_cannot_be_is_one_line(words: tuple[str, ...], line: str) -> None:
    done = subprocess.run([sys.executable, "-m", "polyrhythm", *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, f"polyrhythm: {line}\n")
