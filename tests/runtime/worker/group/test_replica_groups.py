"""Groups of two processes, sharded by FSDP2, as workers of real jobs."""

import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import polyrhythm
from polyrhythm.errors import UsageError
from polyrhythm.runtime.launch.groups import group_environment
from polyrhythm.runtime.launch.rendezvous import GROUP
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.training.flat import local_part
from tests.runtime.jobs import Numbered, flat, job, make_model, make_optimizer, run_job, step

SIZE, SAMPLES, EPOCHS = 2, 48, 2
ADAM: dict[str, Any] = {"kind": "Adam", "lr": 0.02}
MOMENTUM: dict[str, Any] = {"kind": "SGD", "lr": 0.1, "momentum": 0.9}


class Trained(NamedTuple):
    """What one process has at its end: the whole model, and the samples of the last epoch."""

    parameters: Tensor
    indices: list[int]
    policy: str = ""


def enter_group(rank: int, groups: int, folder: Path) -> None:
    """As the launcher has it; the group is a world of its own."""
    os.environ |= group_environment(JobConfig(group_size=SIZE, workers=groups), rank)
    meet(folder / f"group-{rank // SIZE}", rank % SIZE, SIZE)


def meet(file: Path, rank: int, size: int) -> None:
    dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)


def sharded(mesh: Any = None, seed: int = 0) -> nn.Module:
    """Its last layer of three rows has shards of two and one."""
    model = make_model(seed)
    for part in (model[0], model):  # type: ignore[index]
        fully_shard(part, mesh=mesh)
    return model


def whole(model: nn.Module) -> Tensor:
    return torch.cat([p.full_tensor().reshape(-1) for p in model.parameters()])  # type: ignore[attr-defined]


def shards(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Tensor]:
    """What this process has of parameters and optimizer state."""
    states = [value for p in model.parameters() for value in optimizer.state[p].values()]
    return [local_part(tensor).detach().clone() for tensor in (*model.parameters(), *states)]


def train_both_ways(rank: int, folder: Path) -> tuple[list[Tensor], list[Tensor], list[int]]:
    """Under bsp in a session, then by torch's HSDP with the same mini-batches; the samples that were read."""
    data, read = Numbered(SAMPLES), list[list[int]]()
    enter_group(rank, 2, folder)
    model = sharded(seed=rank // SIZE)
    optimizer = make_optimizer(model, **ADAM)
    with torch.no_grad():
        model(data.x[:2])  # after which torch keeps whole parameters, which are not those that the job starts from
    with polyrhythm.session(model, optimizer, epochs=EPOCHS) as session:
        for _ in range(EPOCHS):
            for x, y, index in session.loader(data, 4):
                step(model, optimizer, x, y)
                read.append(index.tolist())
    ours = shards(model, optimizer)
    dist.destroy_process_group()
    meet(folder / "all", rank, 2 * SIZE)
    model = sharded(init_device_mesh("cpu", (2, SIZE), mesh_dim_names=("replicate", "shard")))
    optimizer = make_optimizer(model, **ADAM)
    for batch in read:
        step(model, optimizer, data.x[batch], data.y[batch])
    theirs = shards(model, optimizer)
    dist.destroy_process_group()
    return ours, theirs, [index for batch in read for index in batch]


def test_bsp_has_the_bits_of_hsdp(tmp_path: Path) -> None:
    found = run_job(train_both_ways, 4, tmp_path, workers=2, group_size=SIZE)
    for ours, theirs, _ in found:
        assert len(ours) == len(theirs)
        assert all(map(torch.equal, ours, theirs))
    assert Counter(index for *_, read in found for index in read) == Counter([*range(SAMPLES)] * EPOCHS)


def train(rank: int, optimizer: dict[str, Any], folder: Path | None = None) -> Tensor:
    """Train in a group, or without a folder as a worker of one process."""
    if folder is not None:
        enter_group(rank, 2, folder)
    model = make_model() if folder is None else sharded(seed=rank // SIZE)
    made = make_optimizer(model, **optimizer)
    with polyrhythm.session(model, made, epochs=EPOCHS) as session:
        for _ in range(EPOCHS):
            for x, y, _ in session.loader(Numbered(SAMPLES), 4):
                step(model, made, x, y)
    return flat(model) if folder is None else whole(model)


@pytest.mark.parametrize("policy", ["diloco:3", "selsync:0.1"])
def test_a_group_trains_what_one_process_trains(policy: str, tmp_path: Path) -> None:
    alone = run_job(train, 2, MOMENTUM, policy=policy)
    for found in run_job(train, 4, MOMENTUM, tmp_path, policy=policy, workers=2, group_size=SIZE):
        torch.testing.assert_close(found, alone[0], rtol=1e-4, atol=1e-6)


SWITCHES = {0: "local:2", 1: "diloco:2", 2: "bsp"}
"""Asked for in the first step of these epochs, and in force in the next one at the latest."""

TURNS = len(SWITCHES) + 1


def train_and_save(rank: int, folder: Path) -> Trained:
    enter_group(rank, 2, folder)
    model = sharded(seed=rank // SIZE)
    optimizer = make_optimizer(model, **ADAM)
    with polyrhythm.session(model, optimizer, epochs=TURNS + 1) as session:
        for epoch in range(TURNS):
            indices: list[int] = []
            for number, (x, y, index) in enumerate(session.loader(Numbered(SAMPLES), 4)):
                step(model, optimizer, x, y)
                indices += index.tolist()
                if number == 0 and epoch in SWITCHES:
                    session.switch(SWITCHES[epoch])
        state, policy = session.state_dict(), session.policy
        if session.rank == 0:
            parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
            save({**parts, "job": state}, checkpoint_id=folder / "saved")
    found = Trained(whole(model), indices, policy)
    dist.destroy_process_group()
    return found


def load_and_train(rank: int, folder: Path) -> tuple[Tensor, Trained]:
    """The model as it was loaded, and after one more epoch, of one group."""
    enter_group(rank, 1, folder)
    model = sharded(seed=5)
    optimizer = make_optimizer(model, **ADAM)
    parts = dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))
    loaded: dict[str, Any] = {**parts, "job": {"epoch": -1, "policy": ""}}
    load(loaded, checkpoint_id=folder / "saved")
    set_state_dict(model, optimizer, model_state_dict=loaded["model"], optim_state_dict=loaded["optimizer"])
    before, indices = whole(model), list[int]()
    with polyrhythm.session(model, optimizer, epochs=TURNS + 1) as session:
        session.load_state_dict(loaded["job"])
        for x, y, index in session.loader(Numbered(SAMPLES), 4):
            step(model, optimizer, x, y)
            indices += index.tolist()
        policy = session.policy
    found = Trained(whole(model), indices, policy)
    dist.destroy_process_group()
    return before, found


def test_policies_are_switched_and_another_number_of_groups_goes_on(tmp_path: Path) -> None:
    first = run_job(train_and_save, 4, tmp_path, workers=2, group_size=SIZE)
    assert Counter(index for one in first for index in one.indices) == Counter(range(SAMPLES))
    assert [one.policy for one in first] == ["bsp"] * 4
    assert all(torch.equal(one.parameters, first[0].parameters) for one in first)
    (tmp_path / "group-0").unlink()
    second = run_job(load_and_train, 2, tmp_path, workers=1, group_size=SIZE)
    for before, after in second:
        assert torch.equal(before, first[0].parameters)
        assert torch.equal(after.parameters, second[0][1].parameters)
        assert not torch.equal(after.parameters, before)
    assert Counter(index for _, after in second for index in after.indices) == Counter(range(SAMPLES))


def train_until_one_dies(rank: int, folder: Path) -> Trained:
    enter_group(rank, 2, folder)
    model = sharded()
    optimizer = make_optimizer(model, **MOMENTUM)
    with polyrhythm.session(model, optimizer, epochs=EPOCHS) as session:
        for epoch in range(EPOCHS):
            indices: list[int] = []
            for number, (x, y, index) in enumerate(session.loader(Numbered(SAMPLES), 4)):
                if (rank, epoch, number) == (3, 0, 2):
                    os.kill(os.getpid(), signal.SIGKILL)
                step(model, optimizer, x, y)
                indices += index.tolist()
    return Trained(whole(model), indices)


@pytest.mark.parametrize("policy", ["bsp", "local:2"])
def test_a_group_of_which_one_process_dies_is_gone_and_the_others_finish(policy: str, tmp_path: Path) -> None:
    """Also where only one of the exchanges between two groups has failed."""
    with job(train_until_one_dies, 4, tmp_path, policy=policy, workers=2, group_size=SIZE) as running:
        *left, leader, dead = running.join()
    assert (leader.ok, dead.exit_code) == (False, -signal.SIGKILL)
    assert [one.traceback for one in left] == [""] * SIZE
    first, second = (one.value for one in left)
    assert torch.equal(first.parameters, second.parameters)
    assert Counter(first.indices + second.indices) == Counter(range(SAMPLES))


def test_a_model_that_is_not_sharded_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {GROUP: "0:2", "RANK": "0", "WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    model = make_model()
    with pytest.raises(UsageError, match=r"--group-size 2 is for a model that .* and Sequential is not; call"):
        polyrhythm.session(model, make_optimizer(model, lr=0.1))
