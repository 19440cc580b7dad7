"""Asks the coordinator how the job is, in a thread of its own, and keeps what the answers come to.

It is the only one that asks, whoever looks: pages, metrics and files are all fed by the same looks.
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from polyrhythm.errors import PolyrhythmError, UnreachableError
from polyrhythm.live.history import Frame, JobHistory
from polyrhythm.live.model import JobView
from polyrhythm.runtime.launch.control_client import Controller
from polyrhythm.runtime.wire.control_protocol import AskStatus, JobEvent, Status
from polyrhythm.runtime.wire.protocol import Address

PERIOD_S = 0.5
"""Time between two looks at the job."""

START_S = 600.0
"""How long a coordinator may take to come up; this process ends with the launcher in any case."""

AGAIN_S = 2.0
"""How long to try again after a connection is lost. A coordinator that is there and silent has longer."""

GONE = "the coordinator is gone"


class Sink(Protocol):
    """Takes what each look finds."""

    def see(self, status: Status, view: JobView, events: Sequence[JobEvent]) -> None: ...

    def close(self) -> None: ...


class Reader:
    """Follows a job to its end.

    Args:
        address: of the coordinator.
        sinks: are told of each look, in the reader's thread.
        ended: called when there is no job any more.
        period_s: time between two looks.
    """

    def __init__(
        self,
        address: Address,
        sinks: Sequence[Sink] = (),
        ended: Callable[[], object] = lambda: None,
        period_s: float = PERIOD_S,
    ) -> None:
        self._address, self._sinks, self._ended, self._period_s = address, sinks, ended, period_s
        self._timeline, self._lock, self._stop = JobHistory(), threading.Lock(), threading.Event()
        self._happened: Counter[str] = Counter()
        self._status: Status | None = None
        self._at_s = time.time()
        self._thread = threading.Thread(target=self._run, name="polyrhythm-reader", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def after(self, number: int) -> tuple[JobView | None, list[Frame]]:
        with self._lock:
            return self._timeline.view, self._timeline.after(number)

    @property
    def latest(self) -> tuple[Status | None, float, dict[str, int]]:
        """The latest answer, when it came, and how often each kind of event has happened."""
        with self._lock:
            return self._status, self._at_s, dict(self._happened)

    def _run(self) -> None:
        try:
            while not self._stop.is_set() and not self._follow():
                pass
        except PolyrhythmError as error:
            self._end(GONE if self._status is not None else str(error))
        finally:
            for sink in self._sinks:
                sink.close()
            self._ended()

    def _follow(self) -> bool:
        """Look at the job until it has ended, or an answer fails to come; whether it has ended."""
        with self._connect() as controller:
            try:
                while not self._stop.is_set():
                    if self._look(controller):
                        return True
                    self._stop.wait(self._period_s)
            except UnreachableError:
                return False
        return True

    def _connect(self) -> Controller:
        deadline_s = time.monotonic() + (START_S if self._status is None else AGAIN_S)
        while True:
            try:
                return Controller(self._address)
            except UnreachableError:
                if time.monotonic() > deadline_s or self._stop.wait(0.05):
                    raise

    def _look(self, controller: Controller) -> bool:
        status = controller.ask(AskStatus(self._timeline.last_event))
        with self._lock:
            events = self._timeline.see(status)
            self._happened.update(event.kind for event in events)
            self._status, self._at_s, view = status, time.time(), self._timeline.view
        assert view is not None
        for sink in self._sinks:
            sink.see(status, view, events)
        return bool(status.ended)

    def _end(self, reason: str) -> None:
        with self._lock:
            self._timeline.end(reason)
