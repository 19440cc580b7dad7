"""How far a piece of long work is: what is done, what runs now, the best so far, a table and curves."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import msgspec

KEPT_ROWS = 500
"""Rows of the table; older ones are forgotten."""

KEPT_POINTS = 500
"""Points of a curve; beyond these every other one is forgotten."""


class WorkView(msgspec.Struct, frozen=True):
    """How far it is.

    Attributes:
        title: of the work.
        command: that does it.
        stage: part of the work that `done` and `total` count; nothing if there is one.
        done: of `total` pieces; None where nobody knows how many there are.
        remaining_s: at the pace of this stage so far; None while nobody knows.
        now: what runs now.
        best: the best so far.
        heads: of the table.
        rows: of the table, the latest last.
        curves: points by name.
        ended: how it ended; nothing while it goes on.
    """

    title: str
    command: str
    time_s: float
    stage: str
    done: int
    total: int | None
    remaining_s: float | None
    now: str
    best: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    curves: dict[str, tuple[tuple[float, float], ...]]
    ended: str


class WorkBoard:
    """Keeps it; one thread writes, others may read.

    Example:
        >>> now_s = iter([0.0, 0.0, 2.0, 3.0])
        >>> board = WorkBoard("search", heads=("candidate", "accuracy"), clock=lambda: next(now_s))
        >>> board.begin("trials", total=4)
        >>> board.advance(2, now="bsp, run 1", best="asp")
        >>> view = board.view()
        >>> view.remaining_s, view.now
        (1.0, 'bsp, run 1')
    """

    def __init__(
        self, title: str, command: str = "", heads: Sequence[str] = (), clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._lock, self._clock = threading.Lock(), clock
        self._title, self._command, self._heads = title, command, tuple(heads)
        self._started_s = self._stage_s = self._done_s = clock()
        self._stage, self._now, self._best, self._ended = "", "", "", ""
        self._done, self._before, self._total = 0, 0, None
        self._rows: deque[tuple[str, ...]] = deque(maxlen=KEPT_ROWS)
        self._curves: dict[str, list[tuple[float, float]]] = {}

    _total: int | None

    def begin(self, stage: str, total: int | None, done: int = 0) -> None:
        """A stage begins, with so much of it done before."""
        with self._lock:
            self._stage, self._total, self._done, self._before = stage, total, done, done
            self._stage_s = self._done_s = self._clock()

    def advance(self, done: int | None = None, now: str | None = None, best: str | None = None) -> None:
        """So much of the stage is done; what is None stays as it was."""
        with self._lock:
            if done is not None and done != self._done:
                self._done, self._done_s = done, self._clock()
            self._now = self._now if now is None else now
            self._best = self._best if best is None else best

    def row(self, *cells: str) -> None:
        with self._lock:
            self._rows.append(cells)

    def point(self, curve: str, x: float, y: float) -> None:
        with self._lock:
            points = self._curves.setdefault(curve, [])
            points.append((x, y))
            if len(points) > KEPT_POINTS:
                del points[1:-1:2]

    def end(self, how: str) -> None:
        with self._lock:
            self._ended, self._now = how, ""

    def view(self) -> WorkView:
        with self._lock:
            now_s = self._clock()
            return WorkView(
                title=self._title,
                command=self._command,
                time_s=now_s - self._started_s,
                stage=self._stage,
                done=self._done,
                total=self._total,
                remaining_s=None if self._ended else self._remaining_s(now_s),
                now=self._now,
                best=self._best,
                heads=self._heads,
                rows=tuple(self._rows),
                curves={name: tuple(points) for name, points in self._curves.items()},
                ended=self._ended,
            )

    def _remaining_s(self, now_s: float) -> float | None:
        """The rest at the pace so far, less what has gone by since the latest piece."""
        new = self._done - self._before
        if self._total is None or new <= 0:
            return None
        pace_s = (self._done_s - self._stage_s) / new
        return max(0.0, pace_s * (self._total - self._done) - (now_s - self._done_s))
