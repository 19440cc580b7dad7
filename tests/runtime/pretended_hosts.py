"""Several hosts on one machine: processes that believe that they have no memory in common."""

from polyrhythm.runtime.collectives.hosts import host_map


def live_on(host: int) -> None:
    """Let this process share memory only with those who say the same."""
    host_map.common_ground = lambda: f"host {host}"
