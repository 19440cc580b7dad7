"""On one host a job listens on loopback only: nobody of another host reaches it."""

import os
from ipaddress import ip_address

import pytest

from tests.runtime.listeners import listening
from tests.runtime.places import LIMIT_S, Place

SHOWN = """
def show():
    if rank == 0 and os.environ.get("POLYRHYTHM_GROUP", "0:").startswith("0:"):
        print("port", os.environ["MASTER_PORT"], flush=True)
        open("go").read()
"""

ADAPTED = """
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
within = dist.new_group([0, 1], backend="gloo")
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
sampler = torch.utils.data.DistributedSampler(data)
for number, (x, y) in enumerate(torch.utils.data.DataLoader(data, 2, sampler=sampler)):
    if number == 3:
        dist.barrier(within)
        show()
    step(x, y)
dist.destroy_process_group()
"""

SESSION = """
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if "POLYRHYTHM_GROUP" in os.environ:
    torch.distributed.fsdp.fully_shard(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with polyrhythm.session(model, optimizer) as session:
    for number, (x, y) in enumerate(session.loader(data, batch_size=2)):
        if number == 3:
            show()
        step(x, y)
dist.destroy_process_group()
"""


@pytest.mark.parametrize(
    ("script", "flags"),
    [
        (ADAPTED, ("--policy", "bsp")),
        (SESSION, ("--policy", "asp")),
        (SESSION, ("--policy", "local:2", "--group-size", "2", "--nproc-per-node", "4")),
    ],
    ids=["script", "session", "groups"],
)
def test_no_socket_listens_beyond_loopback(place: Place, script: str, flags: tuple[str, ...]) -> None:
    os.mkfifo(place.folder / "work" / "go")
    with place.start(SHOWN + script, "--nproc-per-node", "2", *flags) as job:
        assert job.stdout is not None
        told = [job.stdout.readline()]
        there = listening(place.processes())
        if told[0]:
            (place.folder / "work" / "go").write_text("go")
        _, said = job.communicate(timeout=LIMIT_S)
    assert job.returncode == 0, said
    hosts, ports = zip(*(where.split() for where in there), strict=True)
    assert told == [f"port {each}\n" for each in ports if f"port {each}\n" in told]
    assert [host for host in hosts if not ip_address(host).is_loopback] == []
