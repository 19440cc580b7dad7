"""Which of torch's own sums are made in lent memory, on real processes."""

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore

from polyrhythm.runtime.collectives.attending.attendance import Attended
from polyrhythm.runtime.collectives.shared.lent import STORAGES
from polyrhythm.testing.processes import run_workers
from tests.runtime.collectives.test_switchable_group import KINDS, connect
from tests.runtime.ddp_models import network


def lending_worker(rank: int, size: int, port: int) -> list[bool]:
    """Whether anything is lent after sums that a script asks for, and after steps with long buckets."""
    _, group = connect(rank, size, port)
    parameter = torch.ones(100_000)
    for _ in range(3):
        dist.all_reduce(parameter, group=group)
    lent = [bool(STORAGES)]
    trainer = KINDS["long buckets"](group, rank)
    trainer.steps(5)
    return [*lent, bool(STORAGES)]


def test_buckets_are_lent_and_what_a_script_has_is_not(store: TCPStore) -> None:
    assert run_workers(lending_worker, 2, 2, store.port) == [[False, True]] * 2


def viewing_worker(rank: int, size: int, port: int, views: bool) -> bool:
    """Whether long buckets are lent; an array over a gradient shows it in the last step, too."""
    _, group = connect(rank, size, port)
    model = network(batch_norm=False, width=300)
    weight, stream = next(model.parameters()), torch.Generator().manual_seed(rank)
    ddp = Attended(model, process_group=group, gradient_as_bucket_view=views)
    shown = []
    for _ in range(4):
        ddp.zero_grad(set_to_none=False)
        ddp(torch.randn(8, 20, generator=stream)).square().mean().backward()
        assert weight.grad is not None
        shown.append(weight.grad.numpy())
    assert (shown[1] == shown[-1]).all(), "torch has laid out its buckets before"
    return bool(STORAGES)


@pytest.mark.parametrize("views", [False, True])
def test_buckets_that_a_script_has_views_of_are_not_lent(store: TCPStore, views: bool) -> None:
    assert run_workers(viewing_worker, 2, 2, store.port, views) == [not views] * 2
