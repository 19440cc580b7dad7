"""Torch's functions as a script finds them."""

from collections.abc import Iterator
from unittest.mock import Mock

import pytest
import torch.distributed as dist
from torch.distributed import HashStore, distributed_c10d  # type: ignore[attr-defined]

from polyrhythm.runtime.script.patches import patch_groups
from polyrhythm.runtime.script.script_group import ScriptGroup

REPLACED = ("init_process_group", "destroy_process_group", "get_backend", "new_group")


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
