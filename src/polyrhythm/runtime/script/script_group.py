"""The default group of an adapted script: a real one in every phase, for collectives at the end of its epochs."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from polyrhythm.runtime.collectives.switchable_group import SwitchGroup

BACKEND = "polyrhythm_script"


class ScriptGroup(SwitchGroup):
    """All ranks of the job. `before` is told the name of each collective, and may refuse it."""

    before: Callable[[str], None] | None = None

    def _run(self, name: str, *args: Any, **kwargs: Any) -> dist.Work:
        if self.before is not None:
            self.before(name)
        return super()._run(name, *args, **kwargs)


def create(store: Store, rank: int, size: int, timeout: timedelta) -> ScriptGroup:
    """What `torch.distributed.init_process_group` calls."""
    group = ScriptGroup(store, rank, range(size), timeout)
    group.set_generation(range(size), "script-0", connect_timeout=timeout)
    return group


dist.Backend.register_backend(BACKEND, create, devices=["cpu", "cuda"])
