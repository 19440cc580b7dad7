"""Ctrl-C and SIGTERM, at any time of a command."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyrhythm.early_end import EarlyEnd

SIGNALS = [(signal.SIGTERM, "ended by SIGTERM", 143), (signal.SIGINT, "interrupted", 130)]


@pytest.fixture(autouse=True)
def heeded(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Also where the tests themselves run in a driver's background, which ignores Ctrl-C."""
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(("number", "how", "status"), SIGNALS)
def test_a_signal_ends_a_block_and_its_handlers_are_as_before(number: int, how: str, status: int) -> None:
    end = EarlyEnd()
    before = [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)]
    with end.by_signals():
        with pytest.raises(KeyboardInterrupt), end.by_signals():
            signal.raise_signal(number)
        assert (end.came, end.how, end.status) == (True, how, status)
    assert not end.came
    assert [signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)] == before


def test_what_was_ignored_stays_ignored() -> None:
    end = EarlyEnd()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with end.by_signals():
        signal.raise_signal(signal.SIGINT)
    assert not end.came


def test_another_thread_leaves_signals_alone() -> None:
    seen: list[object] = []

    def look() -> None:
        with EarlyEnd().by_signals():
            seen.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [signal.getsignal(signal.SIGTERM)]


def test_what_fails_after_a_signal_fails_for_it() -> None:
    end = EarlyEnd()

    def fail() -> None:
        raise RuntimeError("a process is gone")

    def fail_late() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            fail()

    with end.by_signals():
        with pytest.raises(RuntimeError), end.alone():
            fail()
        with pytest.raises(KeyboardInterrupt), end.alone():
            fail_late()
        assert end.by_sigterm


def test_a_command_that_goes_on_after_a_signal_fails_for_what_fails_then() -> None:
    end = EarlyEnd()
    with end.by_signals():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        end.over()
        with pytest.raises(RuntimeError), end.alone():
            raise RuntimeError("a process is gone")


TAKES = "import fcntl, sys, termios; fcntl.ioctl(int(sys.argv[1]), termios.TIOCSCTTY, 0)\n"
SAYS = "import os; from polyrhythm.early_end import in_foreground; print(in_foreground(), flush=True)\n"
BEHIND = "if not os.fork():\n    os.setpgid(0, 0)\n    print(in_foreground(), flush=True)\n    os._exit(0)\nos.wait()\n"


@pytest.mark.parametrize(("code", "said"), [(TAKES + SAYS + BEHIND, ["True", "False"]), (SAYS, ["False"])])
def test_ctrl_c_goes_to_the_foreground_of_a_terminal_wherever_stdin_is_from(code: str, said: list[str]) -> None:
    ours, theirs = os.openpty()
    run = subprocess.run(
        [sys.executable, "-c", code, str(theirs)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        pass_fds=[theirs],
        start_new_session=True,
        check=True,
        text=True,
    )
    os.close(theirs)
    os.close(ours)
    assert run.stdout.split() == said


def test_an_interrupt_without_a_signal_is_as_one_by_ctrl_c() -> None:
    end = EarlyEnd()
    assert (end.came, end.how, end.status) == (False, "interrupted", 130)


WHILE_IMPORTING = """
import os, signal, sys

class Ender:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), {number})

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Ender())
from polyrhythm.cli import main
sys.argv = ["polyrhythm", *{words}]
main()
"""
"""A process that a signal reaches while it imports a module."""


@pytest.mark.parametrize(("number", "how", "status"), SIGNALS)
@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("typer", ("policies",)),
        ("torch", ("simulate", "local-straggler")),
        ("torch", ("run", "--policy", "asp", os.devnull)),
    ],
)
def test_a_signal_during_imports_is_one_line(
    number: int, how: str, status: int, module: str, words: tuple[str, ...]
) -> None:
    code = WHILE_IMPORTING.format(module=module, number=int(number), words=words)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.splitlines()[-1].startswith(f"polyrhythm: {how}")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("module", ["difflib", "subprocess", "polyrhythm.early_end"])
def test_so_is_ctrl_c_before_signals_are_handled(module: str) -> None:
    code = WHILE_IMPORTING.format(module=module, number=int(signal.SIGINT), words=("policies",))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "polyrhythm: interrupted\n")


IN_SOURCE = """
import signal, sys
from polyrhythm.cli import app, main

signal.signal(signal.SIGINT, signal.default_int_handler)
app.app = lambda **_: exec("signal.raise_signal({number})")
main()
"""


@pytest.mark.parametrize(("number", "how", "status"), SIGNALS)
def test_a_signal_in_source_that_is_executed_ends_with_the_same_status(
    tmp_path: Path, number: int, how: str, status: int
) -> None:
    """Where an interrupt ends such source, ``python -m`` ends by SIGINT, whatever status it was to end with."""
    (tmp_path / "called.py").write_text(IN_SOURCE.format(number=int(number)), encoding="utf-8")
    command = [sys.executable, "-m", "called"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (status, f"polyrhythm: {how}\n")


IGNORING = """
import signal, sys
from polyrhythm.cli import main

signal.signal(signal.SIGINT, signal.SIG_IGN)
words = ("uniform", "--timing-only", "--jobs", "1", "--policies", "bsp,./terminating.py:Ends,asp")
sys.argv = ["polyrhythm", "compare", *words]
main()
"""
TERMINATING = """
import signal

from polyrhythm.policies import ASP


class Ends(ASP):
    def decide(self, state, event):
        signal.raise_signal(signal.SIGTERM)
"""


def test_sigterm_is_not_the_policys_in_which_it_comes_where_ctrl_c_is_ignored(tmp_path: Path) -> None:
    """As in the background of a batch script; the run counted as failed, and the next one began."""
    (tmp_path / "called.py").write_text(IGNORING, encoding="utf-8")
    (tmp_path / "terminating.py").write_text(TERMINATING, encoding="utf-8")
    command = [sys.executable, "called.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (143, "polyrhythm: ended by SIGTERM: 1 of 3 runs had finished\n")
