"""Where a worker looks for whoever starts coordinators."""

import itertools
import socket
import uuid

import pytest

from polyrhythm.errors import UnreachableError
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.runtime.worker.presence.route import NOBODY, Route

HOUR_S = 3600.0


def route() -> tuple[Route, str]:
    """To a host that is lost, and a standby here; and what that is called."""
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    name = f"test-{uuid.uuid4().hex}"
    return Route(Address(f"tcp:127.0.0.1:{port}", "job", standby=f"unix:@{name}")), name


def test_a_standby_that_has_ended_is_not_awaited() -> None:
    with pytest.raises(UnreachableError, match=NOBODY):
        route()[0].find(HOUR_S)


def test_one_that_is_about_to_take_over_is_awaited() -> None:
    looking, name = route()
    looks = itertools.count()
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(f"\0{name}")
        with pytest.raises(UnreachableError, match="Connection refused"):
            looking.find(HOUR_S, lambda: next(looks) == 3)
        assert next(looks) == 4
        bound.listen()
        looking.find(HOUR_S)
    assert looking.address.coordinator == f"unix:@{name}"
