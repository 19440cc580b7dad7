"""Which members of a generation are on one host: those that have a ground in common."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from polyrhythm.runtime.wire.rate_limit import RATE
from polyrhythm.runtime.wire.recovery.memory import AVAILABLE

BOOT = Path("/proc/sys/kernel/random/boot_id")
NAMESPACES = Path("/proc/self/ns")


@dataclass(frozen=True, slots=True)
class HostMap:
    """Ranks by host, the hosts in the order of their first ranks."""

    hosts: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, grounds: Iterable[str]) -> "HostMap":
        """The map of members with these grounds, by rank; one without is on a host of its own.

        Example:
            >>> HostMap.of(["a", "b", "a", "", ""]).hosts
            ((0, 2), (1,), (3,), (4,))
        """
        found: dict[str, list[int]] = {}
        for rank, ground in enumerate(grounds):
            found.setdefault(ground or f"alone {rank}", []).append(rank)
        return cls(tuple(map(tuple, found.values())))

    @property
    def all_together(self) -> bool:
        return len(self.hosts) == 1

    @property
    def all_alone(self) -> bool:
        return all(len(ranks) == 1 for ranks in self.hosts)

    def place_of(self, rank: int) -> tuple[int, int]:
        """Number of the host, and of the member on it.

        Example:
            >>> HostMap(((0, 2), (1,))).place_of(2)
            (0, 1)
        """
        return next((host, ranks.index(rank)) for host, ranks in enumerate(self.hosts) if rank in ranks)


def common_ground() -> str:
    """What this process has in common with those that it can share memory with; empty if it should not.

    A host is where sockets without an address reach: a container with its own network is another one. Over an emulated
    link numbers travel.
    """
    if not AVAILABLE or os.environ.get(RATE):
        return ""
    try:
        namespaces = [str((NAMESPACES / kind).stat().st_ino) for kind in ("net", "user")]
        return " ".join([BOOT.read_text().strip(), *namespaces, str(os.getuid())])
    except OSError:
        return ""
