"""Which descriptors of this process are gloo's."""

import socket

from polyrhythm.runtime.collectives.gloo_connections import _descriptors


def test_what_is_opened_next_is_no_descriptor_of_before() -> None:
    """Reading the folder of descriptors takes the number that a listener of gloo then gets: so with torch 2.14."""
    before = _descriptors()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        number = listener.fileno()
        assert number in _descriptors() - before
    assert number not in _descriptors()
