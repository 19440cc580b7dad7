"""The switchable group on CUDA tensors: NCCL with one rank, which needs one GPU. Run by ``make test-gpu``."""

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import HashStore
from torch.nn.parallel import DistributedDataParallel

from polyrhythm.errors import GroupError
from polyrhythm.runtime.collectives import model_averaging as averager
from polyrhythm.runtime.collectives import ops as collectives
from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.state_transfer import hand_over_tensors
from polyrhythm.runtime.collectives.switchable_group import SwitchGroup

DEVICE = torch.device("cuda", 0)


@pytest.fixture
def group() -> Iterator[SwitchGroup]:
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("polyrhythm", store=HashStore(), rank=0, world_size=1)
    world = dist.group.WORLD
    assert isinstance(world, SwitchGroup)
    yield world
    dist.destroy_process_group()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 5)).to(DEVICE)


def batches() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(8, 20, generator=generator).to(DEVICE) for _ in range(6)]


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor) -> None:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def values(model: nn.Module) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in (*model.parameters(), *model.buffers())]


def test_lockstep_apart_lockstep_is_plain_training_for_one_worker(group: SwitchGroup) -> None:
    plain, model = network(), network()
    ddp = DistributedDataParallel(model, device_ids=[0], process_group=group, bucket_cap_mb=0.005)
    alone, ours = (torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (plain, ddp))
    for number, x in enumerate(batches()):
        if number == 2:
            group.set_local()
        if number == 4:
            group.set_generation([0], "epoch-1")
        step(plain, alone, x)
        step(ddp, ours, x)
    assert group.failure is None
    assert group.generation is not None
    assert group.generation._nccl is not None
    for theirs, mine in zip(values(plain), values(model), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_collectives_of_the_session(group: SwitchGroup) -> None:
    generation: Generation = group.set_generation([0], "session")
    vector = torch.arange(4.0, device=DEVICE)
    collectives.mean(generation, vector)
    collectives.broadcast(generation, vector)
    assert vector.tolist() == [0.0, 1.0, 2.0, 3.0]
    model = network()
    before = values(model)
    averager.Averager(model).mean(generation)
    model(batches()[0]).sum().backward()
    collectives.mean_gradients(generation, list(model.parameters()))
    hand_over_tensors(generation, [*model.parameters(), *model.buffers()], source=0)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(model.parameters(), before, strict=False))


def test_collectives_of_a_script(group: SwitchGroup) -> None:
    for phase in ("every_rank", "local"):
        if phase == "local":
            group.set_local()
        total = torch.full((3,), 2.0, device=DEVICE)
        dist.all_reduce(total)
        gathered = [torch.zeros_like(total)]
        dist.all_gather(gathered, total)
        dist.barrier()
        assert gathered[0].tolist() == [2.0] * 3


def test_abort(group: SwitchGroup) -> None:
    generation = group.set_generation([0], "aborted")
    total = torch.ones(1, device=DEVICE)
    dist.all_reduce(total)
    group.abort("enough")
    dist.all_reduce(total)
    assert group.failure == "enough"
    with pytest.raises(GroupError, match="enough"):
        collectives.mean(generation, total)
    group.set_generation([0], "afterwards")
    dist.all_reduce(total)
    torch.cuda.synchronize()
    assert group.failure is None
