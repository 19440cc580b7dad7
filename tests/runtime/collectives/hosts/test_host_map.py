"""Which members are on one host."""

from pathlib import Path

import pytest
from torch._C._distributed_c10d import HashStore

from polyrhythm.runtime.collectives.gloo_connections import GlooSockets
from polyrhythm.runtime.collectives.hosts import host_map
from polyrhythm.runtime.collectives.hosts.host_map import HostMap, common_ground
from polyrhythm.runtime.wire.connection import ADDRESS
from polyrhythm.runtime.wire.rate_limit import RATE
from tests.runtime.members import together


def test_members_are_on_the_host_that_they_have_in_common() -> None:
    assert HostMap.of(["a", "b", "a", "b", "c"]).hosts == ((0, 2), (1, 3), (4,))
    assert HostMap.of(["a", "a"]).all_together
    assert HostMap.of(["", ""]).all_alone
    assert not HostMap.of(["a", "a", ""]).all_alone
    assert not HostMap.of(["a", "a", ""]).all_together


def test_everyone_finds_the_same_map() -> None:
    store = HashStore()
    found = together(lambda rank: HostMap.of(GlooSockets([]).meet(store, rank, 3, common_ground())), 3)
    assert found == [HostMap(((0, 1, 2),))] * 3


def test_a_job_on_several_hosts_may_have_two_launchers_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = common_ground()
    monkeypatch.setenv(ADDRESS, "127.0.0.1")
    assert common_ground() == alone != ""


def test_no_memory_is_shared_where_numbers_travel_or_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_map, "BOOT", Path("/nowhere"))
    assert not common_ground()
    monkeypatch.undo()
    monkeypatch.setenv(RATE, "1e6")
    assert not common_ground()
