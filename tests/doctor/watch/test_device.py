from typing import Any

import pytest

from polyrhythm.doctor.watch.device import MOST_PENDING, DeviceStamps


class Device:
    """A device whose time a test moves, and that passes its events when it is told to."""

    def __init__(self) -> None:
        self.now_ms, self.reached_ms, self.made = 0.0, 0.0, 0

    def event(self) -> "FakeEvent":
        self.made += 1
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, device: Device) -> None:
        self._device, self.at_ms = device, -1.0

    def record(self) -> None:
        self.at_ms = self._device.now_ms

    def query(self) -> bool:
        return self.at_ms <= self._device.reached_ms

    def elapsed_time(self, end_event: "FakeEvent") -> float:
        assert (self.query(), end_event.query()) == (True, True), "a real one would fail"
        return end_event.at_ms - self.at_ms

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} may wait for the device")


@pytest.fixture
def device() -> Device:
    return Device()


def step(stamps: DeviceStamps, device: Device, number: int, computing_ms: float, exchange_ms: float) -> None:
    device.now_ms += computing_ms
    stamps.arrive()
    device.now_ms += exchange_ms
    stamps.end(number, {}, 1_000_000_000)


def test_times_are_those_of_the_device(device: Device) -> None:
    stamps = DeviceStamps(device.event)
    for number in range(3):
        step(stamps, device, number, 10.0, 4.0)
    device.reached_ms = device.now_ms
    found = [(done.step, end_ns - arrival_ns, end_ns) for done, arrival_ns, end_ns in stamps.passed()]
    assert found == [(number, 4_000_000, 1_000_000_000 + number * 14_000_000) for number in range(3)]


def test_what_the_device_has_not_reached_is_not_waited_for(device: Device) -> None:
    stamps = DeviceStamps(device.event)
    step(stamps, device, 0, 10.0, 4.0)
    step(stamps, device, 1, 10.0, 4.0)
    assert list(stamps.passed()) == []
    device.reached_ms = 20.0
    assert [done.step for done, _, _ in stamps.passed()] == [0]


def test_a_device_that_is_far_behind_costs_steps_and_no_events_without_end(device: Device) -> None:
    stamps = DeviceStamps(device.event)
    for number in range(3 * MOST_PENDING):
        step(stamps, device, number, 10.0, 4.0)
    assert device.made == 2 * MOST_PENDING
    device.reached_ms = device.now_ms
    assert [done.step for done, _, _ in stamps.passed()] == list(range(MOST_PENDING))


def test_events_are_used_again(device: Device) -> None:
    stamps = DeviceStamps(device.event)
    for number in range(100):
        step(stamps, device, number, 10.0, 4.0)
        device.reached_ms = device.now_ms
        assert len(list(stamps.passed())) == 1
    assert device.made <= 4


def test_nothing_is_asked_while_a_graph_is_captured(device: Device) -> None:
    capturing = [True]
    stamps = DeviceStamps(device.event, lambda: capturing[0])
    step(stamps, device, 0, 10.0, 4.0)
    assert (device.made, list(stamps.passed())) == (0, [])
    capturing[0] = False
    step(stamps, device, 1, 10.0, 4.0)
    device.reached_ms = device.now_ms
    assert [done.step for done, _, _ in stamps.passed()] == [1]
