"""One member of each host, its leader, and the gloo group of all leaders."""

from datetime import timedelta
from functools import cache

import numpy as np
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import ReduceOp, Store

from polyrhythm.runtime.collectives.gloo_connections import build_gloo, destroy
from polyrhythm.runtime.collectives.group_health import GroupHealth
from polyrhythm.runtime.collectives.nonraising_work import wait_for
from polyrhythm.runtime.collectives.shared.kinds import Kind


class Leaders:
    """A leader's view of the leaders.

    Args:
        store: of the leaders alone.
        host: number of this one's host.
        hosts: how many there are.
        connect_timeout: limit for all to meet.
        timeout: limit of one collective.
        health: of the generation, whose failure ends all waiting.

    Raises:
        RuntimeError: if they do not meet.
    """

    def __init__(
        self,
        store: Store,
        host: int,
        hosts: int,
        connect_timeout: timedelta,
        timeout: timedelta,
        health: GroupHealth,
    ) -> None:
        self._health = health
        self._group: dist.ProcessGroupGloo | None
        self._group, self._sockets, _ = build_gloo(store, host, hosts, connect_timeout, timeout)

    def start_sum(self, vector: Tensor, kind: Kind) -> dist.Work:
        """Start to combine the leaders' vectors in the place of this one's."""
        return self._start("allreduce", vector, adding(kind.operation is np.maximum))

    def spread(self, vector: Tensor, source: int) -> None:
        """Give all leaders the bytes of that of the host `source`; errors as of `wait`."""
        options = dist.BroadcastOptions()
        options.rootRank = source
        self.wait(self._start("broadcast", vector, options), vector)

    def wait(self, work: dist.Work, vector: Tensor) -> None:
        """Until a collective on `vector` has ended.

        Raises:
            ConnectionAbortedError: if it or the generation has failed; the content of `vector` is undefined then.
        """
        wait_for(work, self._health, [vector])
        if self._health.failure is not None:
            raise ConnectionAbortedError(self._health.failure)

    def end(self) -> None:
        """From any thread: who waits, here or on another host, waits no more."""
        self._sockets.shut_down()

    def close(self) -> None:
        groups, self._group = [self._group], None
        destroy(groups, at_once=self._health.failure is None)

    def forget_in_child(self) -> None:
        """After a fork: close the child's copies of the connections."""
        self._sockets.close()

    def _start(self, collective: str, vector: Tensor, options: object) -> dist.Work:
        work: dist.Work = getattr(self._group, collective)([vector], options)
        return work


@cache
def adding(largest: bool) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = ReduceOp(ReduceOp.MAX if largest else ReduceOp.SUM)
    return options
