from pathlib import Path

import pytest

from polyrhythm.doctor.readers import connections
from polyrhythm.doctor.readers.connections import read_links
from polyrhythm.doctor.watch.links import LinkCount, LinkLooks

HERE, THERE, STORE = "10.0.0.1 5000", "10.0.0.2 6000", "10.0.0.9 29500"


def looks(own: str, other: str, rate: float) -> LinkLooks:
    """Two seconds in which 300 bytes went, and a connection to a store."""
    counts = [{(own, other): LinkCount(sent, 0.0, rate, 0.0)} for sent in (100.0, 200.0, 400.0)]
    return LinkLooks([(own, other), (own, STORE)], [0.0, 1.0, 2.0], counts)


def test_a_link_has_two_ends_that_both_have_seen_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"a": looks(HERE, THERE, 50.0), "b": looks(THERE, HERE, 1000.0)}
    monkeypatch.setattr(connections, "read_looks", lambda path: kept[path.name])
    for name in kept:
        (tmp_path / name).touch()
    one, other = read_links({(0, "host0"): tmp_path / "a", (1, "host1"): tmp_path / "b"})
    assert (one.sender, one.receiver, one.sender_host, one.receiver_host, one.local) == (0, 1, "host0", "host1", False)
    assert (other.sender, other.receiver) == (1, 0)
    assert one.sent.tolist() == [100.0, 200.0]
    assert one.needed_s.tolist() == [2.0, 4.0]
    assert other.needed_s.tolist() == [0.1, 0.2]


def test_rings_without_looks_have_no_links(tmp_path: Path) -> None:
    assert read_links({(0, "host0"): tmp_path / "a"}) == ()
