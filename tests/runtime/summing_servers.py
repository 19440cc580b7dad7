"""Servers that only make sums, on a loop in a thread of this process."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import msgspec

from polyrhythm.runtime.server.server_reduce import SumAcceptor, Sums
from polyrhythm.runtime.wire.connection import address_of, listen
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.handshake import Acceptor
from polyrhythm.runtime.wire.shard_protocol import Add

NUMBERS = count()
MODEL_BYTES = 2**20


@contextmanager
def summing_servers(*carriers: str) -> Iterator[list[str]]:
    """Addresses of as many servers as carriers are named: unix or tcp."""
    loop = Loop()
    addresses = [serve(loop, carrier) for carrier in carriers]
    thread = threading.Thread(target=loop.run)
    thread.start()
    try:
        yield addresses
    finally:
        loop.stop()
        thread.join()
        loop.close()


def serve(loop: Loop, carrier: str) -> str:
    sums = Sums(lambda: MODEL_BYTES)
    listener = listen("tcp:127.0.0.1:0" if carrier == "tcp" else f"unix:@polyrhythm-sums-{id(loop)}-{next(NUMBERS)}")
    decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Add)
    Acceptor(loop, listener, "job", "secret", decoder, lambda channel, hello: SumAcceptor(sums, channel))
    return address_of(listener)
