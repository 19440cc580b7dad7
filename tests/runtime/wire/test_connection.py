"""Channels and the loop: order, backpressure, descriptors, ends, timers."""

import errno
import os
import resource
import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from polyrhythm.errors import FrameError, PolyrhythmError, UsageError
from polyrhythm.runtime.wire.connection import MAX_QUEUED, Channel, address_of, connect, listen, parse_address
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.frames import Payload, encode
from polyrhythm.runtime.wire.shard_protocol import Drop, NewBuffer, Pull, PushGradient
from tests.descriptors import none_left

DECODER: "msgspec.msgpack.Decoder[Any]" = msgspec.msgpack.Decoder(PushGradient | Pull | Drop | NewBuffer)


class Log:
    """Keeps what comes; takes payloads of at most a megabyte or, if it is told so, more."""

    def __init__(self, limit: int = 2**20) -> None:
        self.messages: list[Any] = []
        self.payloads: list[bytearray] = []
        self.reasons: list[str] = []
        self.limit = limit

    def received(self, message: Any) -> None:
        self.messages.append(message)

    def destination(self, message: Any, payload: Payload) -> memoryview:
        if payload.nbytes > self.limit:
            raise FrameError(f"{payload.nbytes} bytes are too many")
        self.payloads.append(bytearray(payload.nbytes))
        return memoryview(self.payloads[-1])

    def lost(self, reason: str) -> None:
        self.reasons.append(reason)


class Pair:
    """Two connected channels on one loop."""

    def __init__(self, loop: Loop, family: str) -> None:
        listener = listen("tcp:127.0.0.1:0" if family == "tcp" else f"unix:@polyrhythm-test-channel-{os.getpid()}")
        accepted: list[socket.socket] = []
        loop.listen(listener, accepted.append)
        self.loop = loop
        self.left = Channel(connect(address_of(listener), 5.0), DECODER, "the server", takes_fds=family == "unix")
        assert loop.run_until(lambda: accepted, 5.0)
        self.right = Channel(accepted[0], DECODER, "rank 1")
        self.log, self.back = Log(), Log()
        loop.add(self.right, self.log)
        loop.add(self.left, self.back)

    def until(self, done: Any) -> None:
        assert self.loop.run_until(done, 10.0), (self.log.__dict__, self.back.__dict__)


@pytest.fixture(params=["tcp", "unix"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    loop = Loop()
    yield Pair(loop, request.param)
    loop.close()


def test_messages_and_payloads_arrive_in_order(pair: Pair) -> None:
    data = os.urandom(2**20)
    for number in range(5):
        pair.left.send(PushGradient(number), memoryview(data), Payload("float32", len(data) // 4))
        pair.left.send(Pull(number))
    pair.until(lambda: len(pair.log.messages) == 10)
    assert pair.log.messages == [m for number in range(5) for m in (PushGradient(number), Pull(number))]
    assert all(payload == data for payload in pair.log.payloads)
    assert not pair.left.sending


@pytest.mark.parametrize("framed", [False, True])
def test_what_is_held_goes_in_front_of_the_next_message(pair: Pair, framed: bool) -> None:
    messages = [PushGradient(number, 0) for number in range(4)]
    for message in messages[:-1]:
        pair.left.hold(encode(message) if framed else message)
    pair.left.send(messages[-1])
    pair.until(lambda: len(pair.log.messages) == 4)
    assert pair.log.messages == messages


def test_what_is_held_can_be_released(pair: Pair) -> None:
    pair.left.release()
    for number in range(3):
        pair.left.hold(encode(PushGradient(number, 0)))
    pair.left.release()
    pair.until(lambda: len(pair.log.messages) == 3)
    pair.left.send(Pull(1))
    pair.until(lambda: len(pair.log.messages) == 4)
    assert pair.log.messages == [*(PushGradient(number, 0) for number in range(3)), Pull(1)]


def test_what_all_are_sent_goes_in_front_of_what_each_is_sent_next(pair: Pair) -> None:
    pair.loop.send_all([pair.left, pair.right], Pull(1))
    pair.left.send(Pull(2))
    pair.until(lambda: pair.log.messages == [Pull(1), Pull(2)] and pair.back.messages == [Pull(1)])
    assert pair.loop.run_until(lambda: not (pair.left.held or pair.right.held), 0.0)


def test_both_directions_at_once_do_not_wait_for_each_other(pair: Pair) -> None:
    size = 32 * 2**20
    pair.log.limit = pair.back.limit = size
    for channel in (pair.left, pair.right):
        channel.send(PushGradient(1), memoryview(bytes(size)), Payload("float32", size // 4))
    pair.until(lambda: pair.log.messages and pair.back.messages)


def test_a_peer_that_does_not_read_holds_nobody_up_and_is_given_up(pair: Pair) -> None:
    stalled, reader = socket.socketpair()
    channel = Channel(stalled, DECODER, "rank 9")
    log = Log()
    pair.loop.add(channel, log)
    message = Drop(tuple((i, i) for i in range(2000)))
    sent = 0
    while not channel.sending:
        channel.send(message)
        sent += 1
    pair.left.send(Pull(1))
    pair.until(lambda: pair.log.messages == [Pull(1)])
    for _ in range(MAX_QUEUED + 1):
        channel.send(message)
    pair.until(lambda: log.reasons)
    assert log.reasons == [f"rank 9 does not read; more than {MAX_QUEUED} messages waited for it"]
    assert channel.closed
    reader.close()


def test_the_end_of_a_peer_is_told_once_with_its_name(pair: Pair) -> None:
    pair.left.send(Pull(3))
    pair.left.close()
    pair.until(lambda: pair.log.reasons)
    pair.right.send(Pull(4))
    pair.right.end("again")
    assert pair.log.messages == [Pull(3)]
    assert pair.log.reasons == ["rank 1 closed the connection"]


def test_an_end_in_the_middle_of_a_message_is_said(pair: Pair) -> None:
    pair.left.socket.send(bytes(encode(Pull(3)))[:-2])
    pair.left.close()
    pair.until(lambda: pair.log.reasons)
    assert pair.log.reasons == ["rank 1 closed the connection in the middle of a message"]


def test_a_corrupt_frame_ends_only_its_own_channel(pair: Pair) -> None:
    pair.left.socket.send(b"\x00" * 100)
    pair.until(lambda: pair.log.reasons)
    assert "no Polyrhythm frame" in pair.log.reasons[0]
    pair.until(lambda: pair.back.reasons)
    assert pair.right.closed
    assert pair.left.closed


def test_an_unexpected_payload_ends_the_channel(pair: Pair) -> None:
    pair.left.send(PushGradient(1), memoryview(bytes(2**22)), Payload("float32", 2**20))
    pair.until(lambda: pair.log.reasons)
    assert pair.log.reasons == ["4194304 bytes are too many"]


def test_descriptors_travel_over_unix_sockets() -> None:
    loop = Loop()
    pair = Pair(loop, "unix")
    read, write = os.pipe()
    pair.right.send(NewBuffer(1), fds=(write,))
    os.close(write)
    pair.until(lambda: pair.back.messages)
    os.write(pair.left.fds[0], b"x")
    assert os.read(read, 1) == b"x"
    os.close(read)
    received = pair.left.fds[0]
    loop.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(received)


def test_descriptors_that_nobody_expects_are_refused() -> None:
    loop = Loop()
    pair = Pair(loop, "unix")
    read, write = os.pipe()
    pair.left.send(NewBuffer(1), fds=(write,))
    os.close(write)
    pair.until(lambda: pair.log.messages)
    assert not pair.right.fds
    assert os.read(read, 1) == b""  # the only other copy of the writing end was closed by the kernel
    os.close(read)
    loop.close()


def test_a_channel_that_is_closed_by_one_served_before_it_is_served_no_more() -> None:
    loop = Loop()
    ends = [socket.socketpair() for _ in range(2)]
    channels = [Channel(ours, DECODER, f"rank {rank}") for rank, (ours, _) in enumerate(ends)]

    class Closer(Log):
        """Closes everyone's channel with the first message."""

        def received(self, message: Any) -> None:
            super().received(message)
            for channel in channels:
                channel.close()

    log = Closer()
    for channel in channels:
        loop.add(channel, log)
    for _, theirs in ends:
        theirs.send(encode(Pull(1)))
    loop.step(1.0)
    loop.step(0.0)
    assert (log.messages, log.reasons) == ([Pull(1)], [])
    loop.close()
    for _, theirs in ends:
        theirs.close()


def test_timers_fire_in_order_and_can_be_cancelled() -> None:
    now = [0.0]
    loop = Loop(clock=lambda: now[0])
    fired: list[str] = []
    loop.call_at(2.0, lambda: fired.append("late"))
    loop.call_at(1.0, lambda: fired.append("early"))
    loop.call_at(1.5, lambda: fired.append("cancelled")).cancel()
    loop.step(0.0)
    assert fired == []
    now[0] = 2.0
    loop.step(0.0)
    assert fired == ["early", "late"]
    loop.close()


def test_stop_ends_a_waiting_loop() -> None:
    loop = Loop()
    loop.call_later(0.0, loop.stop)
    loop.run()
    loop.close()


def test_run_until_gives_up() -> None:
    loop = Loop()
    assert not loop.run_until(lambda: False, 0.001)
    loop.close()


@pytest.mark.parametrize(
    "address", ["tcp:1", "tcp::1", "tcp:host:70000", "unix:", "unix:@", "unix:/x", "udp:host:1", "host:1", ""]
)
def test_bad_addresses_are_refused(address: str) -> None:
    with pytest.raises(PolyrhythmError, match=r"address must be tcp:HOST:PORT"):
        parse_address(address)


def test_a_port_in_use_is_one_clear_line() -> None:
    listener = listen("tcp:127.0.0.1:0")
    with pytest.raises(
        PolyrhythmError, match=r"cannot listen on tcp:127.0.0.1:\d+: the port is in use; choose another"
    ):
        listen(address_of(listener))
    listener.close()


def test_an_address_of_another_host_is_one_clear_line() -> None:
    with pytest.raises(
        UsageError, match=r"cannot listen on tcp:192.0.2.7:29400: this host has no such address; give its"
    ):
        listen("tcp:192.0.2.7:29400")


def test_a_name_in_use_points_to_the_other_job() -> None:
    address = f"unix:@polyrhythm-test-twice-{os.getpid()}"
    listener = listen(address)
    with pytest.raises(PolyrhythmError, match="is a job with the same id running"):
        listen(address)
    listener.close()
    listen(address).close()


def test_nobody_there_is_one_clear_line() -> None:
    with pytest.raises(
        PolyrhythmError, match=r"cannot connect to unix:@polyrhythm-test-nobody: .*; is the job running"
    ):
        connect("unix:@polyrhythm-test-nobody", 1.0)


@pytest.mark.parametrize("pair", ["unix"], indirect=True)
def test_descriptors_for_which_there_is_no_room_are_missed(pair: Pair) -> None:
    with open(os.devnull, "rb") as given, none_left():
        pair.right.send(NewBuffer(1), fds=(given.fileno(),))
        pair.until(lambda: pair.back.reasons)
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    (said,) = pair.back.reasons
    assert said.startswith(f"the server is gone (too many open files: a process has at most {most} here;")


class Trouble(Log):
    """Meets an error of this host in what it does with a message."""

    def received(self, message: Any) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_an_error_of_this_host_is_not_the_end_of_the_peer(pair: Pair) -> None:
    trouble = Trouble()
    pair.loop.add(pair.right, trouble)
    pair.left.send(Pull(1))
    pair.until(lambda: trouble.reasons)
    assert trouble.reasons == ["what rank 1 sent could not be handled here: [Errno 24] Too many open files"]
