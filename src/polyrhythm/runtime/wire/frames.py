"""The one message format of the data plane: a fixed header, a msgpack body and, optionally, raw numbers.

| bytes | field |
|---|---|
| 0-1 | magic ``PR`` |
| 2 | protocol version |
| 3 | type of the payload: 0 none, 1 float32, 2 float16, 3 bfloat16, 4 bytes |
| 4-7 | length of the body, bytes, little-endian |
| 8-15 | length of the payload, bytes, little-endian |

`FrameParser` is a protocol without input and output, after h11: bytes go in as they come, messages come out. A payload
is received where its reader wants it, straight into a tensor's memory. Whatever a peer sends, the parser either goes
on or raises `FrameError`; no length is believed before it is checked, so nothing is allocated beyond the limits.
"""

import struct
from collections.abc import Callable
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

from polyrhythm.errors import FrameError

WireDtype: TypeAlias = Literal["float32", "float16", "bfloat16", "uint8"]

HEADER: Final = struct.Struct("<2sBBIQ")
HEADER_BYTES: Final = HEADER.size
MAGIC: Final = b"PR"
VERSION: Final = 1
MAX_HELLO: Final = 4096
"""Largest body before the handshake, bytes."""
MAX_BODY: Final = 16 * 2**20
"""Largest body after the handshake, bytes."""
MAX_PAYLOAD: Final = 2**40
"""Largest payload, bytes; the reader's own, much lower limit is what it expects."""
STAGING: Final = 2**16
"""Bytes that are received at once where no payload is expected."""

DTYPES: Final[tuple[WireDtype, ...]] = ("float32", "float16", "bfloat16", "uint8")
ITEM_BYTES: Final[dict[WireDtype, int]] = {"float32": 4, "float16": 2, "bfloat16": 2, "uint8": 1}

ENCODER: Final = msgspec.msgpack.Encoder()


class Payload(NamedTuple):
    dtype: WireDtype
    elements: int

    @property
    def nbytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]


Destination: TypeAlias = Callable[[Any, Payload], memoryview]
"""Where the payload of a message goes, as writable bytes of exactly its length; raises `FrameError` to refuse it."""


def encode(message: Any, payload: Payload | None = None) -> bytes:
    """Header and body of a frame; the payload's bytes are sent after them.

    Example:
        >>> encode(7)[:4], len(encode(7))
        (b'PR\\x01\\x00', 17)
    """
    body = ENCODER.encode(message)
    code, length = (DTYPES.index(payload.dtype) + 1, payload.nbytes) if payload else (0, 0)
    return HEADER.pack(MAGIC, VERSION, code, len(body), length) + body


def framed(message: Any) -> bytes:
    """Its frame, which it may be itself.

    Example:
        >>> framed(7) == encode(7) == framed(encode(7))
        True
    """
    return message if isinstance(message, bytes) else encode(message)


class FrameParser:
    """Turns received bytes into messages.

    Receive into `buffer`, then `take` what came.

    Args:
        peer: names the sender in errors.
        decoder: turns a body into a message; it must be strict about types.
        destination: see `Destination`.
        max_body: largest body that is accepted now, bytes; may be changed between messages, as may the decoder.

    With `one_at_a_time` each message is handled before the next is decoded.

    Example:
        >>> def refuse(message, payload):
        ...     raise FrameError("no payload is expected")
        >>> parser = FrameParser("rank 1", msgspec.msgpack.Decoder(int), refuse)
        >>> parser.feed(encode(7)[:10]), parser.feed(encode(7)[10:])
        ([], [7])
    """

    def __init__(
        self, peer: str, decoder: "msgspec.msgpack.Decoder[Any]", destination: Destination, max_body: int = MAX_BODY
    ) -> None:
        self.peer = peer
        self.max_body = max_body
        self.decoder = decoder
        self.one_at_a_time = False
        self._destination = destination
        self._staging = memoryview(bytearray(min(STAGING, HEADER_BYTES + max_body)))
        self._start = 0
        self._end = 0
        self.more = False
        self._message: Any = None
        self._missing: memoryview | None = None  # what is still to come of a payload; nothing is staged then

    def buffer(self) -> memoryview:
        """Where the next bytes belong; never empty."""
        if self._missing is not None:
            return self._missing
        if self._start == self._end:
            self._start = self._end = 0
            return self._staging
        if self._start:
            self._compact()
        return self._staging[self._end :]

    def take(self, count: int) -> list[Any]:
        """So many bytes were written to the start of `buffer`: the messages that are complete now, payloads in place.

        If `more` is set after it, it has stopped early, in front of a payload or of what is no frame, so that the
        messages before can be handled first; call it again then, with 0.

        Raises:
            FrameError: for anything but a frame that was expected.
        """
        if self._missing is not None:
            self._missing = self._missing[count:]
        else:
            self._end += count
        messages: list[Any] = []
        self.more = False
        try:
            while (message := self._next_message(not messages)) is not None:
                messages.append(message)
                if self.one_at_a_time:
                    self.more = True
                    break
                if self._start == self._end:
                    break
        except FrameError:
            if not messages:
                raise
            self.more = True  # and raised again when it is the first
        return messages

    def accept_all(self, decoder: "msgspec.msgpack.Decoder[Any]") -> None:
        """The peer has said who it is: from now on it may send all that `decoder` knows."""
        self.decoder, self.max_body, self.one_at_a_time = decoder, MAX_BODY, False
        self._grow(STAGING)

    def _next_message(self, first: bool = True) -> Any | None:
        """The next complete message, its payload in place; None if more bytes are needed, or see `more`."""
        if self._missing is not None:
            return None if len(self._missing) else self._finish_payload()
        staged = self._end - self._start
        if staged < HEADER_BYTES:
            return None
        magic, version, code, body_bytes, payload_bytes = HEADER.unpack_from(self._staging, self._start)
        if magic != MAGIC or version != VERSION or not 0 < body_bytes <= self.max_body:
            raise self._wrong_header(magic, version, body_bytes)
        payload = self._read_payload(code, payload_bytes) if code or payload_bytes else None
        if staged < HEADER_BYTES + body_bytes:
            self._reserve(HEADER_BYTES + body_bytes)
            return None
        if payload is not None and not first:
            self.more = True
            return None
        body = self._start + HEADER_BYTES
        try:
            message = self.decoder.decode(self._staging[body : body + body_bytes])
        except (ValueError, RecursionError) as error:  # msgspec's own errors are ValueErrors
            raise self._error(f"sent a message that cannot be read: {error}") from error
        self._start = body + body_bytes
        return message if payload is None else self._begin_payload(message, payload)

    @property
    def between_messages(self) -> bool:
        return self._missing is None and self._start == self._end

    def feed(self, data: bytes) -> list[Any]:
        """Messages that `data` completes; for callers that have bytes already."""
        messages = []
        rest = memoryview(data)
        while len(rest):
            target = self.buffer()
            count = min(len(target), len(rest))
            target[:count] = rest[:count]
            rest = rest[count:]
            messages += self.take(count)
            while self.more:
                messages += self.take(0)
        return messages

    def _wrong_header(self, magic: bytes, version: int, body_bytes: int) -> FrameError:
        if magic != MAGIC:
            return self._error(f"sent {magic!r}, no Polyrhythm frame; is this the address of another service?")
        if version != VERSION:
            return self._error(
                f"speaks protocol {version}, not {VERSION}; install one version of polyrhythm everywhere"
            )
        return self._error(f"announced a message of {body_bytes} bytes; 1 to {self.max_body} are accepted now")

    def _read_payload(self, code: int, length: int) -> Payload:
        if not 1 <= code <= len(DTYPES):
            raise self._error(f"announced {length} bytes of numbers of the unknown type {code}")
        dtype = DTYPES[code - 1]
        elements, rest = divmod(length, ITEM_BYTES[dtype])
        if rest or not 0 < length <= MAX_PAYLOAD:
            raise self._error(f"announced {length} bytes of {dtype}, which is no possible length")
        return Payload(dtype, elements)

    def _begin_payload(self, message: Any, payload: Payload) -> Any | None:
        target = self._destination(message, payload)
        assert len(target) == payload.nbytes, f"{len(target)} bytes of room for a payload of {payload.nbytes}"
        count = min(self._end - self._start, len(target))
        target[:count] = self._staging[self._start : self._start + count]
        self._start += count
        self._message, self._missing = message, target[count:]
        return self._next_message()

    def _finish_payload(self) -> Any:
        message, self._message, self._missing = self._message, None, None
        return message

    def _compact(self) -> None:
        left = bytes(self._staging[self._start : self._end])
        self._staging[: len(left)] = left
        self._start, self._end = 0, len(left)

    def _reserve(self, needed: int) -> None:
        """Make room for a message that is longer than the staging memory; its length has been checked."""
        if needed > len(self._staging):
            self._grow(needed)

    def _grow(self, size: int) -> None:
        self._compact()
        grown = memoryview(bytearray(size))
        grown[: self._end] = self._staging[: self._end]
        self._staging = grown

    def _error(self, what: str) -> FrameError:
        return FrameError(f"{self.peer} {what}")
