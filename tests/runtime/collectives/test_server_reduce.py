"""A worker's sums over the servers, and how they fail; that they are right is seen in `test_averager`."""

import os
import signal

import pytest
import torch
from torch._C._distributed_c10d import TCPStore

from polyrhythm.errors import GroupError
from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.server_reduce import SumThread
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.testing.processes import workers
from tests.runtime.summing_servers import summing_servers

LIMIT_S = 60.0


def lose_one(rank: int, port: int, servers: list[str]) -> tuple[str, list[float]]:
    """The last rank dies while the others wait for it in their second sum; what these two then sum up."""
    store = TCPStore("127.0.0.1", port, is_master=False)
    thread = SumThread(Address(servers[0], "job", "secret"), rank, servers[1:])
    generation, numbers = Generation(store, "one", range(3), rank), torch.ones(5)
    thread.launch(generation, numbers).wait()
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    with pytest.raises(GroupError, match="sum over the servers in generation 'one'") as failure:
        thread.launch(generation, numbers).wait()
    numbers, following = torch.arange(5.0), Generation(store, "two", range(2), rank)
    thread.launch(following, numbers, rank == 1).wait()
    following.close()  # without a goodbye, its end would be a death for whom still waits
    thread.stop()
    return str(failure.value), numbers.tolist()


def test_the_next_epoch_goes_on_when_a_member_dies_in_a_sum(store: TCPStore) -> None:
    with summing_servers("unix", "tcp") as servers, workers(lose_one, 3, store.port, servers) as running:
        first, second, last = running.join(LIMIT_S)
    assert last.exit_code == -signal.SIGKILL
    for outcome in (first, second):
        assert outcome.ok, outcome.traceback
        assert outcome.value[1] == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_without_a_server_there_is_no_sum(store: TCPStore) -> None:
    """Neither for whom it takes by surprise nor for whom comes later."""
    first, second = (Generation(store, name, (0,), 0) for name in ("one", "two"))
    with summing_servers("unix") as servers:
        thread = SumThread(Address(servers[0], "job", "secret"), 0)
        numbers = torch.ones(3)
        thread.launch(first, numbers).wait()
    for generation in (first, second):
        with pytest.raises(GroupError, match=r"a parameter server is gone: the server at .* closed the connection"):
            thread.launch(generation, numbers).wait()
    thread.stop()
