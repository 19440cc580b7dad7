"""Who may go on when the first host and its standby hear nothing of each other: never both.

The coordinator pings, and the standby answers. By an answer the standby promises to wait for so long after it has got
that ping; so the coordinator may go on for so long after it has *sent* it, which is never later. No clock is compared
with that of another host.

When the time is over, the hosts decide that each side hears. The coordinator needs more than half of them, the standby
at least half; one of two hosts is the standby's.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Permission:
    """How long the coordinator may go on without a word of its standby.

    Args:
        limit_s: how long the standby waits after each ping, at least.
        since_s: when the standby has come.

    Example:
        >>> permission = Permission(limit_s=10.0, since_s=0.0)
        >>> first, second = permission.ping(1.0), permission.ping(2.0)
        >>> permission.answered(first)
        >>> permission.is_over(10.5), permission.is_over(11.5)
        (False, True)
    """

    limit_s: float
    since_s: float
    _sent: dict[int, float] = field(default_factory=dict)
    _number: int = 0

    def ping(self, now_s: float) -> int:
        """One is sent now; its number."""
        self._number += 1
        self._sent[self._number] = now_s
        return self._number

    def answered(self, number: int) -> None:
        """The standby has got that ping."""
        if number in self._sent:
            self.since_s = self._sent[number]
            self._sent = {later: sent_s for later, sent_s in self._sent.items() if later > number}

    def is_over(self, now_s: float) -> bool:
        """Whether the standby may have taken over."""
        return now_s >= self.since_s + self.limit_s


def first_goes_on(hosts: int, heard: int) -> bool:
    """Whether a coordinator that hears so many of the hosts, its own among them, goes on without its standby.

    >>> first_goes_on(2, 1), first_goes_on(3, 2), first_goes_on(4, 2)
    (False, True, False)
    """
    return 2 * heard > hosts


def standby_goes_on(hosts: int, heard: int) -> bool:
    """Whether a standby that hears so many of the hosts does.

    >>> standby_goes_on(2, 1), standby_goes_on(3, 1), standby_goes_on(4, 2)
    (True, False, True)
    """
    return 2 * heard >= hosts
