"""Torch's functions as a script finds them."""

import os
from collections.abc import Iterator
from functools import partial
from importlib import import_module
from ipaddress import ip_address
from unittest.mock import Mock

import pytest
import torch.distributed as dist
from torch.distributed import HashStore, distributed_c10d, rendezvous  # type: ignore[attr-defined]

from polyrhythm.runtime.launch.nodes import Node
from polyrhythm.runtime.launch.rendezvous import store_port
from polyrhythm.runtime.script.group_patches import patch_groups, patch_store
from polyrhythm.runtime.script.script_group import ScriptGroup
from tests.runtime.listeners import listening

REPLACED = ("init_process_group", "destroy_process_group", "get_backend", "new_group")


@pytest.mark.parametrize(("ranks", "here"), [(1, 1), (2, 1)])
def test_the_store_of_one_host_listens_on_loopback(ranks: int, here: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On several it listens where torch lets it."""
    module = import_module("torch.distributed.rendezvous")
    monkeypatch.setattr(module, "TCPStore", partial(module.TCPStore, wait_for_workers=False))
    monkeypatch.setattr(module, "TCPStore", module.TCPStore)
    with store_port(Node()) as port:
        place = {"RANK": 0, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": here, "MASTER_ADDR": "127.0.0.1"}
        for name, value in (place | {"MASTER_PORT": port}).items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.delenv("TORCHELASTIC_USE_AGENT_STORE", raising=False)
        patch_store()
        store, *_ = next(rendezvous("env://"))
        hosts = [place.split()[0] for place in listening([os.getpid()]) if place.endswith(f" {port}")]
        assert [ip_address(host).is_loopback for host in hosts] == [ranks == here]
        del store


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A script's, until the end of a test."""
    for module in (dist, distributed_c10d):
        for name in REPLACED:
            monkeypatch.setattr(module, name, getattr(module, name))
    for name in ("alone", "launched", "messaged", "lives_on"):
        monkeypatch.setattr(ScriptGroup, name, staticmethod(getattr(ScriptGroup, name)))
    script = Mock(dormant=False, session=None)
    script.children.meeting = lambda given: given
    script.collective.return_value = False
    patch_groups(script, Mock())
    yield
    dist.destroy_process_group()


def test_each_group_has_the_backend_that_the_script_gave_it(groups: None) -> None:
    """`monitored_barrier` is for gloo only, and scripts look how they are to send an object."""
    dist.init_process_group("nccl", store=HashStore(), rank=0, world_size=1)
    named, unnamed = dist.new_group(backend="gloo"), dist.new_group()
    assert [dist.get_backend(each) for each in (None, named, unnamed)] == ["nccl", "gloo", "nccl"]
    dist.monitored_barrier(named)
