import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from polyrhythm.doctor.watch.links import MOST_LOOKS, LinkWatcher, connections, read_looks, text
from polyrhythm.errors import TraceError

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Two ends of a TCP connection on this host."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        yield one, other


def ends(end: socket.socket) -> tuple[str, str]:
    return text(end.getsockname()), text(end.getpeername())


def talk(pair: Pair) -> None:
    """So many bytes, there and confirmed."""
    pair[0].sendall(bytes(5000))
    left = 5000
    while left:
        left -= len(pair[1].recv(left))
    pair[1].sendall(b"x")
    pair[0].recv(1)


def test_bytes_of_a_connection_are_counted_at_the_end_that_sends(pair: Pair, tmp_path: Path) -> None:
    watcher = LinkWatcher(tmp_path / "rank-0.links")
    watcher.look(0.0)
    talk(pair)
    watcher.look(1000.0)
    kept = read_looks(tmp_path / "rank-0.links")
    assert kept.times_s == [0.0, 1000.0]
    before, after = (counts.get(ends(pair[0])) for counts in kept.counts)
    assert after is not None
    assert after.sent - (before.sent if before else 0) == pytest.approx(5000, abs=1)
    assert after.rate > 0


def test_looking_leaves_no_descriptor_behind(pair: Pair) -> None:
    before = {name for name, _ in connections()}
    for _ in range(50):
        list(connections())
    assert {ends(pair[0]), ends(pair[1])} <= before
    assert {name for name, _ in connections()} == before
    talk(pair)


def test_many_looks_are_thinned_out(tmp_path: Path) -> None:
    watcher = LinkWatcher(tmp_path / "rank-0.links")
    for number in range(3 * MOST_LOOKS):
        watcher.look(1000.0 * number)
    times_s = read_looks(tmp_path / "rank-0.links").times_s
    assert MOST_LOOKS // 2 <= len(times_s) <= MOST_LOOKS
    assert times_s == sorted(times_s)
    assert times_s[0] == 0.0


def test_a_second_look_comes_only_when_it_is_time(tmp_path: Path) -> None:
    watcher = LinkWatcher(tmp_path / "rank-0.links")
    watcher.look(5.0)
    watcher.look(5.001)
    assert read_looks(tmp_path / "rank-0.links").times_s == [5.0]


def test_what_is_cut_off_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "rank-0.links"
    LinkWatcher(path).look(0.0)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(TraceError, match="is no whole file of the watcher"):
        read_looks(path)
    with pytest.raises(TraceError, match="cannot read"):
        read_looks(tmp_path / "none.links")
