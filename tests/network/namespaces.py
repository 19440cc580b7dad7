"""Several hosts on one machine: network namespaces around one switch, each with a rate limit in both directions.

Needs root and the commands `ip` and `tc` of iproute2. What `network` makes is gone when its block ends, also after an
error: the processes that ran on the hosts, the interfaces and the namespaces.
"""

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

BURST_BYTES = 32 * 1024
"""What a host may send at once above its rate, at least."""

BURST_S = 0.004
"""What it may send at once in seconds at its rate: so late may the kernel be with the next packets."""


@dataclass
class Host:
    """One host: processes that are started on it see its interface ``eth0`` and its loopback only."""

    namespace: str
    address: str
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(self, command: Sequence[str | Path]) -> subprocess.Popen[str]:
        """Run a command on this host; its output and its errors are pipes of text."""
        process = subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process

    def stop(self) -> None:
        """End what still runs."""
        for process in self.processes:
            with process:
                process.kill()


@contextmanager
def network(hosts: int, rate_mbit: float) -> Iterator[list[Host]]:
    """`hosts` hosts around a switch, each limited to `rate_mbit` Mbit/s up and as much down.

    Raises:
        RuntimeError: without root, without iproute2, or when the kernel refuses.
    """
    if os.geteuid() != 0:
        raise RuntimeError("network namespaces need root; run: sudo make test-network")
    with ExitStack() as stack:
        switch = add_namespace(stack, f"polyrhythm-{os.getpid()}-switch")
        run("ip", "-n", switch, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "bridge", "up")
        yield [add_host(stack, switch, number, rate_mbit) for number in range(hosts)]


def add_host(stack: ExitStack, switch: str, number: int, rate_mbit: float) -> Host:
    """A host and its cable to the switch."""
    name = add_namespace(stack, f"polyrhythm-{os.getpid()}-{number}")
    host, port = Host(name, f"10.77.0.{number + 1}"), f"port{number}"
    stack.callback(host.stop)
    run("ip", "-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
    run("ip", "-n", switch, "link", "set", port, "master", "bridge", "up")
    run("ip", "-n", name, "address", "add", f"{host.address}/24", "dev", "eth0")
    for device in ("lo", "eth0"):
        run("ip", "-n", name, "link", "set", device, "up")
    limit(name, "eth0", rate_mbit)
    limit(switch, port, rate_mbit)
    return host


def add_namespace(stack: ExitStack, name: str) -> str:
    """A namespace that goes when `stack` is closed."""
    run("ip", "netns", "add", name)
    stack.callback(run, "ip", "netns", "delete", name)
    return name


def burst_bytes(rate_mbit: float) -> int:
    """What a host of this rate may send at once."""
    return max(BURST_BYTES, round(BURST_S * rate_mbit * 1e6 / 8))


def limit(namespace: str, device: str, rate_mbit: float) -> None:
    """Limit what a device sends."""
    bucket = ["rate", f"{rate_mbit}mbit", "burst", str(burst_bytes(rate_mbit)), "latency", "100ms"]
    run("tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", *bucket)


def run(*command: str) -> str:
    """Output of a command that must succeed."""
    try:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except FileNotFoundError as error:
        raise RuntimeError(f"{command[0]} is not installed; install iproute2") from error
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"{' '.join(command)} failed: {error.stderr.strip()}") from error
