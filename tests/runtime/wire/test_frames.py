"""The frame parser: what it understands, and that nothing a peer sends can hurt it."""

import random
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.errors import FrameError
from polyrhythm.runtime.wire.frames import HEADER, MAGIC, STAGING, VERSION, FrameParser, Payload, encode
from polyrhythm.runtime.wire.shard_protocol import (
    Apply,
    FromCoordinator,
    Hello,
    Pull,
    PushGradient,
    ShardMessage,
    ToShard,
    WeightedGradient,
)

DECODER: "msgspec.msgpack.Decoder[Any]" = msgspec.msgpack.Decoder(Hello | ToShard | FromCoordinator)
FUZZ = settings(derandomize=True, max_examples=300, deadline=None, database=None)
EXPECTED_BYTES = 4096


class Reader:
    """Expects a payload of at most EXPECTED_BYTES after a `PushGradient`, and nothing else."""

    def __init__(self, max_body: int = 2**16) -> None:
        self.payloads: list[bytearray] = []
        self.parser = FrameParser("rank 7", DECODER, self.destination, max_body)

    def destination(self, message: Any, payload: Payload) -> memoryview:
        if not isinstance(message, PushGradient) or payload.nbytes > EXPECTED_BYTES:
            raise FrameError(f"rank 7 announced {payload.nbytes} bytes, which nobody expects")
        self.payloads.append(bytearray(payload.nbytes))
        return memoryview(self.payloads[-1])


MESSAGES: list[tuple[ShardMessage, bytes]] = [
    (Hello("job", "worker", 3), b""),
    (PushGradient(1), bytes(range(200)) * 4),
    (Pull(5, 1), b""),
    (Apply((WeightedGradient(1, 2, 0.5, 3),), 0.1, ({"lr": 0.1, "betas": (0.9, 0.99)},)), b""),
    (PushGradient(2), b"abcd" * 1024),
]


def wire(messages: list[tuple[ShardMessage, bytes]]) -> bytes:
    parts = []
    for message, payload in messages:
        about = Payload("float32", len(payload) // 4) if payload else None
        parts.append(bytes(encode(message, about)) + payload)
    return b"".join(parts)


def test_a_stream_cut_at_every_position_gives_the_same_messages() -> None:
    data = wire(MESSAGES[:4])
    for cut in range(len(data) + 1):
        reader = Reader()
        messages = reader.parser.feed(data[:cut]) + reader.parser.feed(data[cut:])
        assert messages == [message for message, _ in MESSAGES[:4]]
        assert reader.payloads == [MESSAGES[1][1]]
        assert reader.parser.between_messages


@FUZZ
@given(st.lists(st.sampled_from(MESSAGES), max_size=8), st.lists(st.integers(1, 5000), min_size=1, max_size=20))
def test_a_stream_in_pieces_of_any_size_gives_the_same_messages(
    sent: list[tuple[ShardMessage, bytes]], sizes: list[int]
) -> None:
    data, reader = wire(sent), Reader()
    received: list[ShardMessage] = []
    while data:
        size = sizes[len(received) % len(sizes)]
        received += reader.parser.feed(data[:size])
        data = data[size:]
    assert received == [message for message, _ in sent]
    assert reader.payloads == [payload for _, payload in sent if payload]


def feed(data: bytes) -> None:
    """Feed in pieces; only FrameError may come out, and it names the peer."""
    reader = Reader()
    rng = random.Random(len(data))
    try:
        while data:
            size = rng.randint(1, 700)
            reader.parser.feed(data[:size])
            data = data[size:]
    except FrameError as error:
        assert "rank 7" in str(error).splitlines()[-1]  # noqa: PT017 - most inputs raise, some do not


@FUZZ
@given(st.binary(max_size=400))
def test_random_bytes_are_refused_or_incomplete(data: bytes) -> None:
    feed(data)


@FUZZ
@given(st.binary(min_size=1, max_size=400), st.integers(0, 3))
def test_random_bodies_behind_a_true_header(body: bytes, code: int) -> None:
    feed(HEADER.pack(MAGIC, VERSION, code, len(body), 4 * code) + body + bytes(12))


@FUZZ
@given(st.data())
def test_flipped_bits_and_truncations(data: st.DataObject) -> None:
    frames = bytearray(wire(MESSAGES))
    for position in data.draw(st.lists(st.integers(0, 8 * len(frames) - 1), min_size=1, max_size=6)):
        frames[position // 8] ^= 1 << position % 8
    feed(bytes(frames[: data.draw(st.integers(0, len(frames)))]))


@FUZZ
@given(st.integers(0, 255), st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1))
def test_giant_lengths_allocate_nothing(code: int, body: int, payload: int) -> None:
    reader = Reader()
    tracemalloc.start()
    try:
        reader.parser.feed(HEADER.pack(MAGIC, VERSION, code, body, payload) + bytes(64))
    except FrameError as error:
        assert "rank 7" in str(error)  # noqa: PT017
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * STAGING


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"GET / HTTP/1.1\r\n", "rank 7 sent b'GE', no Polyrhythm frame"),
        (HEADER.pack(MAGIC, VERSION + 1, 0, 1, 0), "speaks protocol 2, not 1"),
        (HEADER.pack(MAGIC, VERSION, 0, 2**20, 0), "message of 1048576 bytes; 1 to 65536"),
        (HEADER.pack(MAGIC, VERSION, 0, 0, 0), "message of 0 bytes"),
        (HEADER.pack(MAGIC, VERSION, 9, 1, 8), "unknown type 9"),
        (HEADER.pack(MAGIC, VERSION, 0, 1, 8), "unknown type 0"),
        (HEADER.pack(MAGIC, VERSION, 1, 1, 7), "7 bytes of float32"),
        (HEADER.pack(MAGIC, VERSION, 1, 1, 2**62), "bytes of float32"),
        (HEADER.pack(MAGIC, VERSION, 0, 1, 0) + b"\xc1", "cannot be read"),
        (bytes(encode(PushGradient(1), Payload("float32", 2**30))), "4294967296 bytes, which nobody expects"),
        (bytes(encode(Pull(1), Payload("float32", 1))), "4 bytes, which nobody expects"),
    ],
)
def test_what_is_no_frame_is_named(data: bytes, complaint: str) -> None:
    with pytest.raises(FrameError, match=complaint.replace("(", r"\(")):
        Reader().parser.feed(data)


@pytest.mark.parametrize(
    "body",
    [{"type": "PushGradient", "number": "1"}, {"type": "PushGradient", "number": 1, "code": 2}, {"type": "Pickle"}],
)
def test_bodies_are_read_strictly(body: dict[str, Any]) -> None:
    with pytest.raises(FrameError, match="cannot be read"):
        Reader().parser.feed(bytes(encode(body)))


def test_deep_nesting_is_a_frame_error() -> None:
    body = b"\x82\xa4type\xa4Open\xa9optimizer\x82\xa4kind\xa3SGD\xa7options" + b"\x81\xa1x" * 20000 + b"\x80"
    with pytest.raises(FrameError, match="cannot be read"):
        Reader(max_body=2**20).parser.feed(HEADER.pack(MAGIC, VERSION, 0, len(body), 0) + body)


def test_a_body_longer_than_the_staging_memory_is_read() -> None:
    message = Hello("x" * (3 * STAGING), "worker", 0)
    reader = Reader(max_body=4 * STAGING)
    assert reader.parser.feed(bytes(encode(message)) + wire(MESSAGES)) == [message, *(m for m, _ in MESSAGES)]
