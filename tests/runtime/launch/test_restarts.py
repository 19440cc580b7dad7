"""``polyrhythm run --max-restarts``: a worker that dies comes back, and takes part in what is left."""

import os

import pytest

from polyrhythm.errors import UsageError
from polyrhythm.runtime.launch.environments import become_worker
from polyrhythm.runtime.launch.torchrun import read_command
from tests.runtime.places import Place

COUNTED = """
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.testing.coordinates import SampleNumbers

address = steer.at(os.environ["TORCHELASTIC_RUN_ID"])
restarts = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
chance = torch.Generator()
chance.seed()

class Attempts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(3, 60, 64))

    def forward(self, epoch, samples):
        return self.weight[epoch, samples, torch.randint(64, samples.shape, generator=chance)].mean()

model = Attempts()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

def train(session, wait):
    steps = 0
    for epoch in range(3):
        for number, samples in enumerate(session.loader(SampleNumbers(60), batch_size=2)):
            while wait and epoch == 2 and not restarts and 1 not in steer.status(address).members:
                pass
            optimizer.zero_grad()
            model(epoch, samples).backward()
            optimizer.step()
            steps += 1
            if rank == 1 and not restarts and (epoch, number) == (1, 3):
                os.kill(os.getpid(), signal.SIGKILL)
    return steps
"""

COMES_BACK = """
with polyrhythm.session(model, optimizer) as session:
    steps = train(session, wait=True)
made = (model.weight != 0).sum(-1)
told = rank, restarts, steps > 0, int((made == 0).sum()), int((made > 1).sum())
os.write(1, (" ".join(map(str, told)) + chr(10)).encode())  # in one piece, beside others
"""

STAYS_LONG = """
from polyrhythm.errors import UnreachableError

with polyrhythm.session(model, optimizer) as session:
    train(session, wait=True)
if rank == 1:
    try:
        while True:
            steer.status(address)
    except UnreachableError:
        subprocess.run([sys.executable, "-c", "import torch"])
    print("saved")
"""

LOOKS_AFTER_THE_FIRST_EPOCH = """
with polyrhythm.session(model, optimizer) as session:
    loader = session.loader(SampleNumbers(60), batch_size=2)
    for epoch in range(3):
        for number, samples in enumerate(loader):
            if rank == 1 and not restarts and epoch == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            while epoch == 2 and 1 not in steer.status(address).members:
                pass
            optimizer.zero_grad()
            model(epoch, samples).backward()
            optimizer.step()
        if restarts and epoch == 0:
            print(int((model.weight[0] != 0).any(-1).sum()))
"""

COMES_TOO_LATE = """
if restarts:
    open("back").close()
with polyrhythm.session(model, optimizer) as session:
    train(session, wait=False)
"""

REMOVES = """
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.wire.control_protocol import RemoveWorker

address = steer.at(os.environ["TORCHELASTIC_RUN_ID"])
with polyrhythm.session(model, optimizer) as session:
    for epoch in range(2):
        for x, y in session.loader(data, batch_size=2):
            while rank and epoch:
                os.open("back", os.O_RDONLY)
            step(x, y)
        if not rank and not epoch:
            steer.ask(address, RemoveWorker(1, "a test"))
print("restarts", os.environ["TORCHELASTIC_RESTART_COUNT"])
"""

GROUPED = """
import torch.distributed as dist

dist.init_process_group("gloo")
"""

THREE = ("--nproc-per-node", "3", "--max-restarts", "1")


@pytest.fixture
def place(place: Place) -> Place:
    """With a pipe that nobody opens from the other side."""
    os.mkfifo(place.folder / "work" / "back")
    return place


@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_one_that_dies_comes_back(place: Place, policy: str) -> None:
    done = place.run(COUNTED + COMES_BACK, *THREE, "--policy", policy)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 0 True 0 0", "1 1 True 0 0", "2 0 True 0 0"], done.stderr
    assert "polyrhythm: rank 1 was killed by SIGKILL; it is started again (1 of 1)" in done.stderr
    assert "before it joined" not in done.stderr
    assert list(place.processes()) == []


def test_one_that_is_removed_stays_away(place: Place) -> None:
    done = place.run(REMOVES, "--nproc-per-node", "2", "--max-restarts", "1", "--policy", "asp")
    assert (done.returncode, done.stdout) == (0, "restarts 0\n"), done.stderr
    assert "rank 1 was removed by a test; going on without it" in done.stderr
    assert "started again" not in done.stderr


@pytest.mark.parametrize(("policy", "made"), [("bsp", 0), ("asp", 60)])
def test_after_an_epoch_that_is_over_it_has_what_servers_have(place: Place, policy: str, made: int) -> None:
    done = place.run(COUNTED + LOOKS_AFTER_THE_FIRST_EPOCH, *THREE, "--policy", policy)
    assert (done.returncode, done.stdout) == (0, f"{made}\n"), done.stderr
    assert done.stderr.count("what it saves or evaluates there is not the job's") == (made == 0)


def test_what_it_does_after_the_job_is_left_to_it(place: Place) -> None:
    done = place.run(COUNTED + STAYS_LONG, *THREE, "--policy", "asp")
    assert (done.returncode, done.stdout) == (0, "saved\n"), done.stderr


def test_nobody_waits_for_one_that_comes_too_late(place: Place) -> None:
    done = place.run(COUNTED + COMES_TOO_LATE, *THREE, "--policy", "asp")
    assert done.returncode == 0, done.stderr
    assert "polyrhythm: rank 1 was started again, and the job has ended before it joined\n" in done.stderr
    assert done.stderr.count("SIGKILL") == 1
    assert list(place.processes()) == []


def test_a_process_group_that_nobody_can_join_again_is_refused_at_the_start(place: Place) -> None:
    done = place.run(GROUPED, *THREE)
    assert done.returncode == 2
    refusals = [line for line in done.stderr.splitlines() if "--max-restarts 1" in line]
    assert len(refusals) == 1
    assert "init_process_group forms a group that a worker cannot join again" in refusals[0]


def test_who_was_started_by_others_is_not_started_again_by_us() -> None:
    order = read_command(["--max-restarts", "2", "script.py"])
    with pytest.raises(UsageError, match="--max-restarts 2 is for workers that polyrhythm run starts"):
        become_worker(order.config, order.command, ())
