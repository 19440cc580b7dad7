"""Which processes are a worker together, and what they cannot have."""

from typing import Any

import pytest

from polyrhythm.errors import UsageError
from polyrhythm.runtime.launch.groups import check_groups, place_in_group
from polyrhythm.runtime.launch.nodes import Node
from polyrhythm.runtime.launch.torchrun import LaunchOrder, read_command, worker_environment
from polyrhythm.runtime.wire.job_config import JobConfig
from tests.runtime.places import Place


def order(*flags: str) -> LaunchOrder:
    return read_command([*flags, "train.py"])


def test_a_worker_is_a_group() -> None:
    plan = order("--nproc-per-node=4", "--group-size=2")
    assert (plan.config.workers, plan.processes) == (2, 4)
    assert plan.config.max_coordinator_restarts == 0
    places = [place_in_group(worker_environment(plan.config, plan.processes, rank, 4001)) for rank in range(4)]
    assert places == [(0, 2, 0, 2), (0, 2, 1, 2), (1, 2, 0, 2), (1, 2, 1, 2)]


def test_a_group_meets_on_its_own_host() -> None:
    config = JobConfig(workers=4, group_size=2)
    environment = worker_environment(config, 4, 5, 4001, Node(1, 2, "10.0.0.1", store_port=4000))
    assert (environment["MASTER_ADDR"], environment["MASTER_PORT"], environment["LOCAL_RANK"]) == (
        "127.0.0.1",
        "4001",
        "1",
    )


@pytest.mark.parametrize(
    ("flags", "refusal"),
    [
        (["--nproc-per-node=3"], "--group-size 2 must divide the processes of a host, and --nproc-per-node is 3"),
        (["--policy=asp"], "--group-size 2 and policy asp exclude each other: it runs on parameter servers"),
        (["--max-restarts=1"], "--group-size 2 and --max-restarts 1 cannot go together yet; leave one of them out"),
        (["--max-coordinator-restarts=1"], "--group-size 2 and --max-coordinator-restarts 1 cannot go together yet"),
        (["--checkpoint=kept"], "--group-size 2 and --checkpoint kept cannot go together yet"),
        (["--compress=int8"], "--group-size 2 and --compress int8 cannot go together yet"),
        (["--averaging=server"], "--group-size 2 and --averaging server cannot go together yet"),
        (["--injection=0.5,0.5"], "--group-size 2 and --injection 0.5,0.5 cannot go together yet"),
        (["--on-divergence=end"], "--group-size 2 and --on-divergence end cannot go together yet"),
        (["--group-size=0"], "--group-size must be at least 1 but got 0"),
    ],
)
def test_what_groups_cannot_have_is_refused(flags: list[str], refusal: str) -> None:
    with pytest.raises(UsageError) as refused:
        order("--nproc-per-node=4", "--group-size=2", *flags)
    assert str(refused.value).startswith(refusal)


@pytest.mark.parametrize("settings", [{"checkpoint": "kept"}, {"compress": "int8"}, {"policy": "asp"}])
def test_what_the_session_asks_for_is_refused_too(settings: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="group_size 2 and"):
        check_groups(JobConfig(group_size=2, **settings), 2)


def test_who_is_started_by_somebody_else_has_no_groups() -> None:
    with pytest.raises(UsageError, match="is for workers that polyrhythm run starts"):
        check_groups(JobConfig(group_size=2), 0)


SHARDED = """
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard

dist.init_process_group("gloo")
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with polyrhythm.session(model, optimizer) as session:
    for number, (x, y) in enumerate(session.loader(data, batch_size=2)):
        if (session.rank, rank, number) == (1, 1, 2):
            os.kill(os.getpid(), signal.SIGKILL)
        step(x, y)
    os.write(1, f"finished {session.rank} {session.world_size}\\n".encode())  # in one piece, beside the other
"""


def test_a_group_ends_with_each_of_its_processes(place: Place) -> None:
    done = place.run(SHARDED, "--nproc-per-node=4", "--group-size=2", "--policy=bsp")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("finished 0 2") == 2
    assert "process 1 of rank 1 was killed by SIGKILL, and its group ends with it; 1 worker goes on" in done.stderr
    assert not [*place.processes()]


def test_a_script_without_a_session_is_refused(place: Place) -> None:
    done = place.run("step(data[0][0], data[0][1])", "--nproc-per-node=2", "--group-size=2")
    assert done.returncode == 2, done.stderr
    assert "--group-size is for scripts with polyrhythm.session" in done.stderr
