import msgspec
import pytest

from polyrhythm.emulation.pace import Death, Emulation, Pacer, SlowTime


class Stage:
    """A clock that only sleeping moves, and a signal that only is noted."""

    def __init__(self, emulation: Emulation) -> None:
        self.now_s, self.killed = 100.0, list[tuple[int, float]]()
        self.pacer = Pacer(emulation, 10, lambda: self.now_s, self.sleep, self.kill)

    def sleep(self, time_s: float) -> None:
        self.now_s += time_s

    def kill(self, number: int) -> None:
        self.killed.append((number, self.now_s - 100.0))

    def steps(self, count: int, samples: int = 10) -> list[float]:
        """How long each of so many steps takes."""
        taken = []
        for _ in range(count):
            before = self.now_s
            self.pacer.start_step(samples)
            taken.append(self.now_s - before)
        return taken


def test_delays_come_in_order_and_again() -> None:
    assert Stage(Emulation([1.0, 2.0])).steps(3) == [1.0, 2.0, 1.0]


def test_half_a_mini_batch_takes_half_the_time() -> None:
    assert Stage(Emulation([1.0])).steps(1, samples=5) == [0.5]


def test_a_slow_time_by_step() -> None:
    slow = SlowTime(1, 3, by_step=True, slowdown=2.0, extra_s=0.5)
    assert Stage(Emulation([1.0], (slow,))).steps(4) == [1.0, 2.5, 2.5, 1.0]


def test_a_slow_time_by_time_is_settled_when_a_step_starts() -> None:
    slow = SlowTime(0.5, 2.5, by_step=False, slowdown=3.0)
    assert Stage(Emulation([1.0], (slow,))).steps(3) == [1.0, 3.0, 1.0]


class Servers:
    """Notes when something arrives there, or is asked for."""

    def __init__(self, stage: Stage) -> None:
        self._stage, self.seen_s = stage, list[float]()

    def push(self, number: int) -> int | None:
        self.seen_s.append(self._stage.now_s - 100.0)
        return None

    def pull(self, version: int) -> None:
        self.seen_s.append(self._stage.now_s - 100.0)

    def swap(self, number: int) -> int:
        self.seen_s.append(self._stage.now_s - 100.0)
        return 7


def test_messages_to_and_from_the_servers_are_late() -> None:
    slow = SlowTime(1, 2, by_step=True, extra_latency_s=0.5)
    stage = Stage(Emulation([1.0], (slow,), latency_s=0.25))
    servers = Servers(stage)
    stage.pacer.delay(servers)
    for step in range(3):
        servers.pull(step)
        stage.steps(1)
        servers.push(step)
    assert servers.seen_s == [0.25, 1.5, 2.25, 4.0, 4.25, 5.5]
    assert (servers.swap(3), servers.seen_s[-1]) == (7, 5.75)


@pytest.mark.parametrize(
    ("death", "when_s"), [(Death(9, time_s=1.25), 1.25), (Death(19, step=2), 2.0), (Death(9, time_s=0.0), 0.0)]
)
def test_a_death_comes_in_time(death: Death, when_s: float) -> None:
    stage = Stage(Emulation([1.0], deaths=(death,)))
    while not stage.killed:
        stage.steps(1)
    assert stage.killed == [(death.signal, when_s)]


def test_a_plan_that_travels_keeps_its_infinities() -> None:
    emulation = Emulation([1.0], (SlowTime(0, float("inf"), False),), (Death(9, step=3),))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(emulation), type=Emulation) == emulation
