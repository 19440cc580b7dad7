"""Where a worker's coordinator is: on the first host until that is lost, and then with its standby for good."""

import socket
import time
from collections.abc import Callable

import msgspec

from polyrhythm.errors import UnreachableError
from polyrhythm.runtime.wire.connection import parse_address, reach
from polyrhythm.runtime.wire.protocol import Address

LOOK_S = 5.0
"""How long whoever starts coordinators may take to accept a connection, if there is a standby."""

AGAIN_S = 0.05
"""Pause between two looks: a standby may be about to take over."""


NOBODY = "the first host is lost, and the standby, on this host, has ended without its job; start the job again"


class Route:
    """The same for all threads of a worker, each of which may find out that the first host is lost.

    Args:
        address: what the worker was started with.

    Example:
        >>> route = Route(Address("tcp:10.0.0.1:29400", "job", standby="tcp:10.0.0.2:29400"))
        >>> route.move(), route.address.coordinator, route.move()
        (True, 'tcp:10.0.0.2:29400', False)
    """

    def __init__(self, address: Address) -> None:
        self.address = address

    def move(self) -> bool:
        """The first host does not answer any more; whether there is another one to turn to."""
        address = self.address
        if not address.standby:
            return False
        self.address = msgspec.structs.replace(address, coordinator=address.standby, standby="")
        self._patient = True
        return True

    _patient = False
    """Whether the standby may still have to notice, too."""

    def find(self, patience_s: float, is_over: Callable[[], bool] = lambda: False) -> None:
        """Whoever starts coordinators is there.

        Args:
            patience_s: how long a standby may take to take over; without one nobody is awaited.
            is_over: whether nobody wants to know any more.

        Raises:
            UnreachableError: if nobody is.
        """
        deadline = time.monotonic() + patience_s
        while True:
            try:
                self._look(patience_s)
            except UnreachableError as error:
                if not (self.address.standby or self._patient) or time.monotonic() > deadline or is_over():
                    raise
                if is_free(self.address.standby or self.address.coordinator):
                    raise UnreachableError(NOBODY) from error
                time.sleep(AGAIN_S)
            else:
                return

    def _look(self, patience_s: float) -> None:
        address = self.address
        if not address.standby:
            reach(address.coordinator, patience_s).close()
            self._patient = False
            return
        try:
            reach(address.coordinator, min(patience_s, LOOK_S)).close()
        except UnreachableError:
            reach(address.standby, min(patience_s, LOOK_S)).close()
            self.move()


def is_free(address: str) -> bool:
    """Whether nobody has this name on this host; a standby has its own before it listens there.

    >>> is_free("unix:@nobody-has-this"), is_free("tcp:10.0.0.2:29400")
    (True, False)
    """
    family, name = parse_address(address)
    if family != socket.AF_UNIX:
        return False
    with socket.socket(family) as probe:
        try:
            probe.bind(name)
        except OSError:
            return False
    return True
