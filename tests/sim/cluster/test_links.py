"""Links against a brute-force max-min simulation that advances every flow by itself."""

import math
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.sim.cluster.links import Network, SharedLink, ring_s

CAPS = (1.0, 2.0, 7.0, math.inf)


@dataclass
class Message:
    start_s: float
    size: float
    cap: float
    abandon_s: float
    left: float = 0.0


def max_min_rates(capacity: float, caps: list[float]) -> list[float]:
    """Progressive filling: everyone's rate rises together until a cap or the link holds it."""
    rates = [0.0] * len(caps)
    rising = list(range(len(caps)))
    while rising:
        step = min(capacity / len(rising), min(caps[i] - rates[i] for i in rising))
        for i in rising:
            rates[i] += step
        capacity -= step * len(rising)
        if capacity <= 1e-12:
            break
        rising = [i for i in rising if caps[i] - rates[i] > 1e-12]
    return rates


def brute_force(capacity: float, messages: list[Message]) -> dict[int, float]:
    """End of each message that is not abandoned before."""
    ends: dict[int, float] = {}
    active: list[int] = []
    now, coming = 0.0, sorted(range(len(messages)), key=lambda i: messages[i].start_s)
    while coming or active:
        rates = max_min_rates(capacity, [messages[i].cap for i in active])
        ending = [now + messages[i].left / rate for i, rate in zip(active, rates, strict=True)]
        abandoned = [messages[i].abandon_s for i in active]
        then = min([messages[i].start_s for i in coming[:1]] + ending + abandoned)
        for i, rate in zip(active, rates, strict=True):
            messages[i].left -= rate * (then - now)
        for i in list(active):
            if messages[i].left <= 1e-9 * messages[i].size:
                ends[i] = then
                active.remove(i)
            elif messages[i].abandon_s <= then:
                active.remove(i)
        while coming and messages[coming[0]].start_s <= then:
            messages[coming[0]].left = messages[coming[0]].size
            active.append(coming.pop(0))
        now = then
    return ends


def shared_link(capacity: float, messages: list[Message]) -> dict[int, float]:
    """The same through a `SharedLink`."""
    link: SharedLink[int] = SharedLink(capacity)
    changes = [(m.start_s, 0, i) for i, m in enumerate(messages)]
    changes += [(m.abandon_s, 1, i) for i, m in enumerate(messages) if m.abandon_s < math.inf]
    flows, ends = {}, {}
    for time_s, kind, i in [*sorted(changes), (math.inf, 2, -1)]:
        while (next_s := link.next_s()) <= time_s and next_s < math.inf:
            for payload in link.pop(next_s):
                ends[payload] = next_s
        if kind == 0:
            flows[i] = link.add(time_s, messages[i].size, messages[i].cap, i)
        elif kind == 1 and flows[i].live:
            link.remove(time_s, flows[i])
    return ends


@st.composite
def traffic(draw: st.DrawFn) -> list[Message]:
    messages = []
    for _ in range(draw(st.integers(1, 12))):
        start_s = draw(st.integers(0, 20)) / 2
        lasts_s = draw(st.one_of(st.just(math.inf), st.integers(1, 20).map(lambda x: x / 3 + 0.01)))
        messages.append(
            Message(start_s, float(draw(st.integers(1, 50))), draw(st.sampled_from(CAPS)), start_s + lasts_s)
        )
    return messages


@settings(max_examples=300, deadline=None, derandomize=True)
@given(capacity=st.sampled_from([0.5, 3.0, 10.0, 100.0]), messages=traffic())
def test_equals_brute_force(capacity: float, messages: list[Message]) -> None:
    ends = shared_link(capacity, messages)
    expected = brute_force(capacity, messages)
    near_ties = {i for i, m in enumerate(messages) if abs(expected.get(i, ends.get(i, 0.0)) - m.abandon_s) < 1e-6}
    assert ends.keys() - near_ties == expected.keys() - near_ties
    for i in ends.keys() & expected.keys():
        assert ends[i] == pytest.approx(expected[i], rel=1e-9, abs=1e-9)


def test_equal_messages_end_together() -> None:
    link: SharedLink[int] = SharedLink(10.0)
    for i in range(7):
        link.add(0.0, 0.1, math.inf, i)
    assert link.pop(link.next_s()) == list(range(7))
    assert link.next_s() == math.inf


def test_removing_one_speeds_up_the_others() -> None:
    link: SharedLink[str] = SharedLink(10.0)
    first = link.add(0.0, 100.0, math.inf, "first")
    link.add(0.0, 100.0, math.inf, "second")
    link.remove(4.0, first)
    assert link.next_s() == 4.0 + 80.0 / 10.0


def test_removing_what_has_ended_changes_nothing() -> None:
    link: SharedLink[str] = SharedLink(10.0)
    first = link.add(0.0, 10.0, math.inf, "first")
    link.add(0.0, 20.0, math.inf, "second")
    link.pop(2.0)
    link.remove(2.5, first)
    assert (link.next_s(), link.pop(3.0)) == (3.0, ["second"])


def test_serial_moves_with_every_change() -> None:
    link: SharedLink[str] = SharedLink(1.0)
    serials = [link.serial]
    flow = link.add(0.0, 1.0, 1.0, "a")
    serials.append(link.serial)
    link.add(0.0, 1.0, 1.0, "b")
    serials.append(link.serial)
    link.remove(0.5, flow)
    serials.append(link.serial)
    assert len(set(serials)) == 4


@pytest.mark.parametrize("workers", [1, 2, 3, 16])
def test_ring(workers: int) -> None:
    expected = 2 * (workers - 1) / workers * 12e6 / 3e6 + 2 * (workers - 1) * 0.25
    assert ring_s(workers, 12e6, 3e6, 0.25) == pytest.approx(expected)


def test_links_of_a_network() -> None:
    assert Network(message_bytes=1e6).links() is None
    assert Network(server_gbps=1).links() is None
    full = Network(message_bytes=1e6, server_gbps=8, shards=3).links()
    assert full is not None
    assert full[0] is not full[1]
    assert full[0].capacity == 3e9
    half = Network(message_bytes=1e6, server_gbps=8, duplex="half").links()
    assert half is not None
    assert half[0] is half[1]
