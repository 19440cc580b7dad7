"""`polyrhythm top JOB`: the job in a terminal, with keys to switch its policy and to drain or kill a worker."""

import contextlib
import os
import readline
import select
import signal
import sys
import termios
import tty
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.live import Live

from polyrhythm.early_end import early_end
from polyrhythm.errors import PolyrhythmError, UnreachableError, UsageError
from polyrhythm.live.history import JobHistory
from polyrhythm.live.model import JobView
from polyrhythm.live.screen import screen
from polyrhythm.runtime.launch.control_client import Controller
from polyrhythm.runtime.wire.control_protocol import AskStatus, DrainWorker, RemoveWorker, ToControlled
from polyrhythm.runtime.wire.job_config import runnable
from polyrhythm.runtime.wire.protocol import Address, SwitchTo

PERIOD_S = 0.5


def show(address: Address, by: str) -> None:
    """Show a job until it ends or the reader has seen enough; where there is no terminal, once."""
    console, history = Console(), JobHistory()
    with Controller(address) as controller:
        view = look(controller, history)
        if not (console.is_terminal and sys.stdin.isatty()):
            console.print(screen(view, height=len(view.workers) + 12))
            return
        with keyboard() as keys:
            watch(console, controller, history, keys, by)


class Keyboard:
    """The terminal's keys. A signal wakes who waits for one: it may come just before the wait."""

    def __init__(self, woken: int) -> None:
        self._woken = woken

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether a key comes in time."""
        while True:
            ready, _, _ = select.select([sys.stdin, self._woken], [], [], timeout_s)
            if self._woken not in ready:
                return bool(ready)
            os.read(self._woken, 4096)  # the signal's handler runs after this line, and may end the wait

    def pressed(self, timeout_s: float | None) -> str:
        """The key that was pressed meanwhile, or nothing; Ctrl-D where the terminal is gone."""
        if not self.wait(timeout_s):
            return ""
        # Not from the buffer of `sys.stdin`: it would take keys that come at once; `select` and readline miss the rest.
        return os.read(sys.stdin.fileno(), 1).decode("latin-1") or "\x04"


def watch(console: Console, controller: Controller, history: JobHistory, keys: Keyboard, by: str) -> None:
    notice = ""
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            view = look(controller, history)
            live.update(screen(view, console.height, notice), refresh=True)
            key = keys.pressed(None if view.ended else PERIOD_S)
            if key in ("q", "\x03", "\x04"):
                return
            if key in ASKED and not view.ended:
                notice = act(live, console, controller, keys, key, by)


def look(controller: Controller, history: JobHistory) -> JobView:
    """The job now; as it was last, once it has ended."""
    if history.view is None or not history.view.ended:
        try:
            history.see(controller.ask(AskStatus(history.last_event)))
        except UnreachableError as error:
            if history.view is None:
                raise
            history.end(str(error))
    assert history.view is not None
    return history.view


ASKED: dict[str, tuple[str, Callable[[str, str], ToControlled]]] = {
    "s": ("switch to policy", lambda text, by: SwitchTo(runnable(text), by)),
    "d": ("drain rank", lambda text, by: DrainWorker(rank(text), by)),
    "k": ("kill rank", lambda text, by: RemoveWorker(rank(text), by)),
}
"""What a key asks for, and the message that the answer makes."""


def rank(text: str) -> int:
    if not text.isdecimal():
        raise UsageError(f"a rank is a number such as 2, not {text!r}")
    return int(text)


def act(live: Live, console: Console, controller: Controller, keys: Keyboard, key: str, by: str) -> str:
    """Ask what is wanted, and have it done; a line that says what came of it."""
    question, message_of = ASKED[key]
    live.stop()
    try:
        console.print(f"{question} (empty: nothing): ", markup=False, end="")
        keys.wait()  # readline misses a signal that comes just before it waits
        with cooked(), completed(key == "s"):
            text = input().strip()
        if not text:
            return ""
        controller.ask(message_of(text, by))
    except PolyrhythmError as error:
        return f"not done: {error}"
    except (EOFError, KeyboardInterrupt):
        if early_end.by_sigterm:
            raise
        early_end.over()
        return ""
    finally:
        live.start(refresh=True)
    return f"asked to {question} {text}"


@contextlib.contextmanager
def completed(specs: bool) -> Iterator[None]:
    """The Tab key completes specs of policies."""
    from polyrhythm.policies import BUILT_IN
    from polyrhythm.policies._lib.completion import completions

    def proposed(text: str, number: int) -> str | None:
        return dict(enumerate(completions(text, BUILT_IN))).get(number)

    before = readline.get_completer(), readline.get_completer_delims()
    readline.set_completer(proposed if specs else None)
    readline.set_completer_delims("")
    readline.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        readline.set_completer(before[0])
        readline.set_completer_delims(before[1])


@contextlib.contextmanager
def keyboard() -> Iterator[Keyboard]:
    """Keys come one by one, without being shown."""
    before = termios.tcgetattr(sys.stdin)
    with wakes() as woken:
        try:
            tty.setcbreak(sys.stdin)
            yield Keyboard(woken)
        finally:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


@contextlib.contextmanager
def wakes() -> Iterator[int]:
    """A descriptor that can be read once a signal has come."""
    woken, signalled = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    before = signal.set_wakeup_fd(signalled, warn_on_full_buffer=False)
    try:
        yield woken
    finally:
        signal.set_wakeup_fd(before)
        os.close(woken)
        os.close(signalled)


@contextlib.contextmanager
def cooked() -> Iterator[None]:
    """Lines are edited and shown as usual."""
    before = termios.tcgetattr(sys.stdin)
    lines = termios.tcgetattr(sys.stdin)
    lines[3] |= termios.ICANON | termios.ECHO
    try:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, lines)
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
