"""Following a job to its end, against a coordinator of which nothing is real but its answers."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from polyrhythm.errors import UnreachableError
from polyrhythm.live import reader as module
from polyrhythm.live.reader import Reader
from polyrhythm.runtime.wire.control_protocol import Status
from polyrhythm.runtime.wire.protocol import Address
from tests.live.statuses import event, status

ADDRESS = Address("unix:@nobody", "fruit")


class Script:
    """Controllers whose answers are given: a status, or what is raised; each controller ends at what it raises."""

    def __init__(self, *answers: Status | Exception) -> None:
        self.answers = list(answers)
        self.connections = 0
        self.asked: list[int] = []

    def __call__(self, address: Address) -> Any:
        assert address == ADDRESS
        if not self.answers:
            raise UnreachableError("cannot connect")
        self.connections += 1
        return self

    def __enter__(self) -> "Script":
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def ask(self, message: Any) -> Status:
        self.asked.append(message.after)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class Sink:
    def __init__(self) -> None:
        self.seen: list[tuple[float, list[int]]] = []
        self.closed = threading.Event()

    def see(self, now: Status, view: Any, events: Any) -> None:
        assert view.time_s == now.time_s
        self.seen.append((now.time_s, [each.number for each in events]))

    def close(self) -> None:
        self.closed.set()


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Reader, Sink, Script]]:
    monkeypatch.setattr(module, "AGAIN_S", 0.0)

    def follow(*answers: Status | Exception) -> tuple[Reader, Sink, Script]:
        script, sink, over = Script(*answers), Sink(), threading.Event()
        monkeypatch.setattr(module, "Controller", script)
        reader = Reader(ADDRESS, (sink,), over.set, period_s=0.0)
        reader.start()
        assert over.wait(60.0)
        assert sink.closed.is_set()
        return reader, sink, script

    return follow


def test_a_job_is_followed_to_its_last_word(follow: Callable[..., tuple[Reader, Sink, Script]]) -> None:
    last = status(3.0, ended="finished", events=(event(3, "end"),))
    reader, sink, script = follow(status(1.0, events=(event(1), event(2))), status(2.0), last)
    assert sink.seen == [(1.0, [1, 2]), (2.0, []), (3.0, [3])]
    assert script.asked == [0, 2, 2]
    view, frames = reader.after(1)
    assert view is not None
    assert (view.ended, [frame.number for frame in frames]) == ("finished", [2, 3])
    assert reader.latest[2] == {"switch": 2, "end": 1}


def test_an_answer_that_does_not_come_is_asked_for_again(follow: Callable[..., tuple[Reader, Sink, Script]]) -> None:
    silent = UnreachableError("silent for 30 s")
    _, sink, script = follow(status(1.0), silent, status(2.0), status(3.0, ended="finished"))
    assert [time_s for time_s, _ in sink.seen] == [1.0, 2.0, 3.0]
    assert script.connections == 2


def test_a_coordinator_that_is_gone_leaves_the_last_state(follow: Callable[..., tuple[Reader, Sink, Script]]) -> None:
    reader, _, _ = follow(status(1.0, 7), UnreachableError("closed the connection"))
    view, _ = reader.after(0)
    assert view is not None
    assert (view.samples, view.ended) == (7, module.GONE)
