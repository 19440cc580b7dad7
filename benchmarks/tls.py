"""What TLS between hosts costs: a push and a pull over TCP on loopback, plain and with TLS in turn.

    python benchmarks/tls.py [ROUNDS]

Two processes, of which each encrypts or decrypts what it sends or gets. Processor time is that of both. There is no
bar: loopback has no link that would hide it.
"""

import os
import subprocess
import sys
import tempfile
import time
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

import msgspec

from polyrhythm.runtime.wire.connection import address_of, listen
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.frames import Payload
from polyrhythm.runtime.wire.handshake import Acceptor, join
from polyrhythm.runtime.wire.shard_protocol import Hello, PushGradient
from polyrhythm.runtime.wire.tls.files import CA, CERT, KEY

DECODER: "msgspec.msgpack.Decoder[Any]" = msgspec.msgpack.Decoder(PushGradient)
SIZES = {"44 MB": 44_000_000, "1 KB": 1000}
SHAKES = "connect"


class Echo:
    """Sends every payload back."""

    def __init__(self, channel: Any) -> None:
        self.channel, self.payload, self.count = channel, bytearray(max(SIZES.values())), 0

    def received(self, message: PushGradient) -> None:
        self.count += 1
        if self.channel is not None:
            data = memoryview(self.payload)[: message.number]
            self.channel.send(message, data, Payload("uint8", message.number))

    def destination(self, message: Any, payload: Payload) -> memoryview:
        return memoryview(self.payload)[: payload.nbytes]

    def lost(self, reason: str) -> None:
        """The client is through."""


def serve(words: Any) -> None:
    loop, listener = Loop(), listen("tcp:127.0.0.1:0")
    Acceptor(loop, listener, "job", "secret", DECODER, lambda channel, _: Echo(channel))
    words.send(address_of(listener))
    while not words.poll():
        loop.step(0.05)
    words.recv()
    words.send(time.process_time())


def measure(rounds: int) -> dict[str, tuple[float, float]]:
    """Of each size the median seconds there and back; of the long one the processor seconds of both ends, too."""
    ours, theirs = get_context("spawn").Pipe()
    server = get_context("spawn").Process(target=serve, args=(theirs,), daemon=True)
    server.start()
    address, loop = ours.recv(), Loop()
    begin = time.perf_counter()
    log = Echo(None)
    channel = join(loop, address, Hello("job", "worker", 0), DECODER, log, token="secret")
    found = {SHAKES: (time.perf_counter() - begin, 0.0)}
    before = time.process_time()
    for name, size in SIZES.items():
        data, taken = memoryview(bytes(size)), []
        for _ in range(rounds if size > 1e6 else 100 * rounds):
            begin, log.count = time.perf_counter(), 0
            channel.send(PushGradient(size), data, Payload("uint8", size))
            loop.run_until(lambda: log.count, 60.0)
            taken.append(time.perf_counter() - begin)
        found[name] = median(taken), time.process_time() - before
    ours.send("end")
    found["44 MB"] = found["44 MB"][0], (found["44 MB"][1] + ours.recv()) / rounds
    server.join()
    loop.close()
    return found


def make_certificates(folder: Path) -> dict[str, str]:
    """One that has signed itself is its own authority."""
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    words = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run([*words, "-keyout", key, "-out", cert, "-subj", "/CN=host"], check=True, capture_output=True)
    return {CERT: cert, KEY: key, CA: cert}


def main(rounds: int = 10) -> None:
    with tempfile.TemporaryDirectory() as folder:
        files = make_certificates(Path(folder))
        found: dict[str, list[dict[str, tuple[float, float]]]] = {"plain": [], "TLS": []}
        for _ in range(3):
            for kind, runs in found.items():
                for name, path in files.items():
                    os.environ[name] = path if kind == "TLS" else ""
                runs.append(measure(rounds))
    for name in (*SIZES, SHAKES):
        plain, tls = (median(run[name][0] for run in runs) for runs in found.values())
        print(f"{name:8} plain {1000 * plain:9.3f} ms   TLS {1000 * tls:9.3f} ms   {tls / plain:5.2f} times")
    plain, tls = (median(run["44 MB"][1] for run in runs) for runs in found.values())
    print(f"processor seconds for 44 MB there and back: plain {plain:.3f}, TLS {tls:.3f}, {tls / plain:.2f} times")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
