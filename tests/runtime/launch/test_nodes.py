"""A host of a job, and how others reach it."""

import os
from ipaddress import ip_address

import pytest
from torch.distributed import ProcessGroupGloo

from polyrhythm.runtime.launch.nodes import ALONE, GLOO_INTERFACE, Node, own_interface
from polyrhythm.runtime.launch.torchrun import worker_environment
from polyrhythm.runtime.wire.job_config import JobConfig
from tests.runtime.listeners import listening


def test_gloo_listens_on_loopback_within_one_host() -> None:
    name = own_interface(ALONE, {})[GLOO_INTERFACE]
    before = listening([os.getpid()])
    device = ProcessGroupGloo.create_device(interface=name)
    made = [place for place in listening([os.getpid()]) if place not in before]
    assert [ip_address(place.split()[0]).is_loopback for place in made] == [True]
    del device


@pytest.mark.parametrize(("hosts", "given", "found"), [(1, "", "lo"), (1, "eth0", "eth0"), (2, "", ""), (2, "a", "a")])
def test_the_interface_of_a_worker(hosts: int, given: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(GLOO_INTERFACE, raising=False)
    if given:
        monkeypatch.setenv(GLOO_INTERFACE, given)
    node = Node(count=hosts, host="127.0.0.1" if hosts > 1 else "")
    told = {**os.environ, **worker_environment(JobConfig(workers=hosts), 1, 0, 4001, node)}
    assert told.get(GLOO_INTERFACE, "") == found
