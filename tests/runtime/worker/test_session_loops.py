"""What scripts do between batches, such as accumulating and clipping, trains as it does in one process."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

import polyrhythm
from polyrhythm.errors import PolyrhythmError, UnreachableError, UsageError
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.launch.rendezvous import COORDINATOR
from polyrhythm.runtime.wire.control_protocol import Status
from polyrhythm.runtime.wire.protocol import Address
from tests.runtime.jobs import Numbered, flat, job, make_model, make_optimizer, run_job, step

SAMPLES = 48
EPOCHS = 3
THERE_AND_BACK = {(0, 4): "asp", (1, 4): "bsp", (2, 4): "local:2"}
"""Epoch and step after which one worker alone changes the policy: its path must not change."""
IN_STEP = {(0, 2): "k-sync:2", (1, 2): "bsp"}
"""For two workers, whose rounds take the same samples under both policies; after the last step of an epoch."""


class Plain:
    """Stands for a session in one process: the batches in order."""

    step_due = True

    def __init__(self, accumulate: int) -> None:
        self._accumulate = accumulate

    def batches(self, data: Numbered, batch_size: int) -> Any:
        part = batch_size // self._accumulate
        for start in range(0, len(data), part):
            self.step_due = (start // part + 1) % self._accumulate == 0
            yield data.x[start : start + part], data.y[start : start + part], None

    def switch(self, policy: str) -> None:
        raise AssertionError("one process has no policy")


class Loop:
    """A script. Subclasses change what it does in a step and after an epoch."""

    accumulate = 1

    def __init__(self) -> None:
        self.model = self.make_model()
        self.optimizer = self.make_optimizer()

    def make_model(self) -> nn.Module:
        return make_model()

    def make_optimizer(self) -> Optimizer:
        return make_optimizer(self.model, lr=0.1, momentum=0.9)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(x), y)

    def batch(self, number: int, x: Tensor, y: Tensor, step_due: bool) -> None:
        self.optimizer.zero_grad()
        self.loss(x, y).backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()

    def epoch_end(self) -> None:
        """Nothing."""

    def run(self, session: Any, batches: Callable[[], Any], switches: dict[tuple[int, int], str]) -> Tensor:
        for epoch in range(EPOCHS):
            for number, (x, y, _) in enumerate(batches()):
                self.batch(number, x, y, session.step_due)
                if (epoch, number) in switches:
                    session.switch(switches[epoch, number])
            self.epoch_end()
        return flat(self.model)


class Accumulating(Loop):
    accumulate = 2

    def batch(self, number: int, x: Tensor, y: Tensor, step_due: bool) -> None:
        (self.loss(x, y) / self.accumulate).backward()  # type: ignore[no-untyped-call]
        if step_due:
            self.optimizer.step()
            self.optimizer.zero_grad()


class Clipping(Loop):
    def batch(self, number: int, x: Tensor, y: Tensor, step_due: bool) -> None:
        self.optimizer.zero_grad()
        self.loss(x, y).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()


class Scaling(Loop):
    """Infinities in the third and in the last step of every epoch, which the scaler then leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=64.0)

    def batch(self, number: int, x: Tensor, y: Tensor, step_due: bool) -> None:
        self.optimizer.zero_grad()
        loss = self.loss(x, y) * (torch.inf if number in (2, self.last) else 1.0)
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        self.scaler.step(self.optimizer)
        self.scaler.update()

    last = 11


class ScalingInStep(Scaling):
    last = 5


class Stepping(Loop):
    def __init__(self) -> None:
        super().__init__()
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=1, gamma=0.5)

    def epoch_end(self) -> None:
        self.scheduler.step()


class Cycling(Loop):
    """Cycles rate and momentum in every step."""

    steps = SAMPLES // 4 * EPOCHS

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=0.2, total_steps=self.steps + 1)

    def batch(self, number: int, x: Tensor, y: Tensor, step_due: bool) -> None:
        super().batch(number, x, y, step_due)
        self.scheduler.step()


class CyclingInStep(Cycling):
    steps = SAMPLES // 8 * EPOCHS


class Grouped(Loop):
    """Two groups with rates of their own, a frozen parameter, AdamW."""

    def make_optimizer(self) -> Optimizer:
        first, _, last = self.model.children()
        first.bias.requires_grad_(False)
        groups = [{"params": last.parameters(), "lr": 0.02}, {"params": first.parameters(), "weight_decay": 0.3}]
        return torch.optim.AdamW(groups, lr=0.01)


def train(rank: int, loop: type[Loop], switches: dict[tuple[int, int], str], batch_size: int) -> Tensor:
    script = loop()
    with polyrhythm.session(script.model, script.optimizer) as session:
        loader = session.loader(Numbered(SAMPLES), batch_size, shuffle=False, accumulate=loop.accumulate)
        return script.run(session, lambda: loader, switches if rank == 0 else {})


def train_alone(loop: type[Loop], batch_size: int) -> Tensor:
    session, data = Plain(loop.accumulate), Numbered(SAMPLES)
    return loop().run(session, lambda: session.batches(data, batch_size), {})


@pytest.mark.parametrize("loop", [Accumulating, Clipping, Scaling, Stepping, Cycling, Grouped])
def test_one_worker_under_changing_policies(loop: type[Loop]) -> None:
    (found,) = run_job(train, 1, loop, THERE_AND_BACK, 4)
    torch.testing.assert_close(found, train_alone(loop, 4), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("loop", [Accumulating, Clipping, ScalingInStep, Stepping, CyclingInStep, Grouped])
def test_two_workers_in_lockstep(loop: type[Loop]) -> None:
    for found in run_job(train, 2, loop, {}, 4):
        torch.testing.assert_close(found, train_alone(loop, 8), rtol=1e-4, atol=1e-6)


def count_skipped(rank: int, name: str, policy: str) -> tuple[Status, dict[str, Any]]:
    script = Scaling()
    with polyrhythm.session(script.model, script.optimizer, policy=policy) as session:
        loader = session.loader(Numbered(SAMPLES), 4, shuffle=False)
        script.run(session, lambda: loader, {})
        return steer.status(steer.at(name)), session.metrics


@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_steps_that_a_scaler_leaves_out_are_counted(policy: str) -> None:
    name = f"skipped-{policy}-{torch.initial_seed()}"
    with job(count_skipped, 1, name, policy, name=name, policy=policy) as running:
        (outcome,) = running.join()
    assert outcome.ok, outcome.traceback
    status, metrics = outcome.value
    skipped = 2 * EPOCHS
    assert (metrics["steps"], metrics["skipped_steps"]) == (EPOCHS * 12 - skipped, skipped)
    assert (status.samples, status.skipped) == (EPOCHS * SAMPLES - 4 * skipped, 4 * skipped)


class Normalised(Loop):
    def make_model(self) -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


def normalise(rank: int, policy: str) -> list[dict[str, Tensor]]:
    """Buffers after each epoch."""
    script = Normalised()
    ends = []
    with polyrhythm.session(script.model, script.optimizer) as session:
        for _ in range(2):
            for x, y, _index in session.loader(Numbered(SAMPLES), 4):
                script.batch(0, x, y, True)
            ends.append({name: buffer.clone() for name, buffer in script.model.named_buffers()})
            session.switch(policy)
    return ends


MEAN, COUNT = "1.running_mean", "1.num_batches_tracked"


def test_replicas_average_their_buffers_too() -> None:
    (_, first), (_, second) = run_job(normalise, 2, "local:3")
    assert torch.equal(first[MEAN], second[MEAN])
    assert first[COUNT] == second[COUNT] == 12


def test_asynchronous_workers_keep_their_buffers() -> None:
    (before, first), (_, second) = run_job(normalise, 2, "asp")
    assert not torch.equal(first[MEAN], second[MEAN])
    assert first[COUNT] + second[COUNT] == 2 * before[COUNT] + 12


def misuse(rank: int, mistake: str) -> str:
    """What a script is told that does what cannot be."""
    with pytest.raises(PolyrhythmError) as refused:
        MISTAKES[mistake]()
    return str(refused.value)


def step_wrongly(accumulate: int = 1, fused: bool = False, closure: Callable[[], float] | None = None) -> None:
    """Two steps for each mini-batch, which are too many."""
    model = make_model()
    optimizer = make_optimizer(model, "Adam", lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", enabled=fused)
    with polyrhythm.session(model, optimizer) as session:
        for x, y, _ in session.loader(Numbered(8), 4, accumulate=accumulate):
            scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()  # type: ignore[no-untyped-call]
            scaler.step(optimizer, *[closure] if closure else [])
            optimizer.step()


def ask_wrongly(ask: Callable[[Any, Optimizer], object]) -> None:
    """Something else that cannot be, before the first epoch."""
    model = make_model()
    optimizer = make_optimizer(model, lr=0.1)
    with polyrhythm.session(model, optimizer) as session:
        ask(session, optimizer)


MISTAKES: dict[str, Callable[[], None]] = {
    "closure": partial(step_wrongly, closure=float),
    "fused scaler": partial(step_wrongly, fused=True),
    "two steps": step_wrongly,
    "too early": partial(step_wrongly, accumulate=2),
    "no batch": partial(ask_wrongly, lambda session, optimizer: optimizer.step()),
    "policy": partial(ask_wrongly, lambda session, optimizer: session.switch("spp")),
    "state": partial(ask_wrongly, lambda session, optimizer: session.load_state_dict({"epoch": 3})),
    "sampler": partial(ask_wrongly, lambda session, optimizer: session.loader(Numbered(8), 4, sampler=range(8))),
    "batch size": partial(ask_wrongly, lambda session, optimizer: session.loader(Numbered(8), 5, accumulate=2)),
    "stream": partial(ask_wrongly, lambda session, optimizer: session.loader(iter([1]), 4)),
    "nothing": partial(ask_wrongly, lambda session, optimizer: session.loader(Numbered(0), 4)),
    "no policy": partial(ask_wrongly, lambda session, optimizer: session.switch(None)),
}

MISUSE = {
    "closure": "optimizer.step was given a closure; call backward() before step() and pass none",
    "fused scaler": "GradScaler with a fused optimizer hides the true gradients; use fused=False",
    "no batch": "optimizer.step without a mini-batch: make one step for each batch of session.loader",
    "two steps": "optimizer.step without a mini-batch: make one step for each batch of session.loader",
    "too early": "optimizer.step came too early; with accumulate, step when session.step_due is true",
    "policy": "unknown policy 'spp': did you mean ssp?",
    "state": "session state must have epoch and policy but has epoch",
    "sampler": "session.loader takes no sampler: the job decides who reads which samples",
    "batch size": "batch_size 5 must be a positive multiple of accumulate, which is 2",
    "stream": "dataset list_iterator has no length or no index; workers share a map-style dataset",
    "nothing": "dataset Numbered is empty; give session.loader at least one sample",
    "no policy": "a policy is a spec, such as 'asp', or a Policy, but got None",
}


@pytest.mark.parametrize("mistake", MISUSE)
def test_what_cannot_be_is_refused_with_a_clear_line(mistake: str) -> None:
    (told,) = run_job(misuse, 1, mistake)
    assert told.startswith(MISUSE[mistake])


def test_a_wrapped_model_is_refused() -> None:
    model = make_model()
    with pytest.raises(PolyrhythmError, match=r"wrapped in DataParallel; pass the plain module, model\.module"):
        polyrhythm.session(nn.DataParallel(model), make_optimizer(model, lr=0.1))


def test_a_model_and_an_optimizer_in_the_wrong_order_are_refused() -> None:
    model: Any = make_model()
    optimizer: Any = make_optimizer(model, lr=0.1)
    with pytest.raises(
        UsageError, match=r"model must be a torch Module but is SGD; call .*session\(model, optimizer\)"
    ):
        polyrhythm.session(optimizer, model)
    with pytest.raises(UsageError, match="optimizer must be a torch Optimizer but is list"):
        polyrhythm.session(model, [optimizer])  # type: ignore[arg-type]


USES: list[Callable[[Any], object]] = [
    lambda session: session.switch("asp"),
    lambda session: session.log(accuracy=0.5),
    lambda session: list(session.loader(Numbered(8), 4)),
]


def test_a_session_that_could_not_be_opened_may_be_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    address = Address("unix:@polyrhythm-nobody", "nobody")
    monkeypatch.setenv(COORDINATOR, msgspec.json.encode(address).decode())
    for _ in range(2):
        model = make_model()
        with pytest.raises(UnreachableError, match="refused"), polyrhythm.session(model, make_optimizer(model, lr=0.1)):
            pass


def test_the_state_that_servers_have_cannot_be_fetched_after_it() -> None:
    model = make_model()
    with polyrhythm.session(model, make_optimizer(model, lr=0.1), policy="asp") as session:
        for x, y, _ in session.loader(Numbered(8), 4):
            step(model, session._optimizer, x, y)
    with pytest.raises(UsageError, match="the session is closed"):
        session.state_dict()


@pytest.mark.parametrize("use", USES, ids=["switch", "log", "loader"])
def test_a_session_is_of_use_within_its_block_only(use: Callable[[Any], object]) -> None:
    model = make_model()
    session = polyrhythm.session(model, make_optimizer(model, lr=0.1))
    with pytest.raises(UsageError, match="the session is not open; use it inside of: with"):
        use(session)
    with session:
        pass
    with pytest.raises(UsageError, match="the session is closed; use it inside of its with block"):
        use(session)


def train_short_of_one(rank: int, name: str) -> Tensor:
    """The other worker of two never comes."""
    steer.absent(steer.at(name), 1)
    return train(rank, RatesAlone, {}, 4)


class RatesAlone(Loop):
    """Plain SGD, whose path tells the rate."""

    rate = 0.2

    def make_optimizer(self) -> Optimizer:
        return make_optimizer(self.model, lr=self.rate)


class HalfTheRate(RatesAlone):
    rate = 0.1


@pytest.mark.parametrize(("convention", "expected"), [("linear", HalfTheRate), ("same", RatesAlone)])
def test_an_update_from_one_of_two_workers(convention: str, expected: type[Loop]) -> None:
    name = f"rates-{convention}-{torch.initial_seed()}"
    (found,) = run_job(train_short_of_one, 1, name, name=name, workers=2, policy="asp", lr_convention=convention)
    torch.testing.assert_close(found, train_alone(expected, 4), rtol=1e-4, atol=1e-6)


def count(rank: int, workers: int) -> list[int]:
    """What a schedule would count at each mini-batch."""
    script = Loop()
    counts = []
    with polyrhythm.session(script.model, script.optimizer) as session:
        options: dict[str, Any] = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
        loader = session.loader(Numbered(SAMPLES), 4, **options)
        for _ in range(2):
            for number, (x, y, _index) in enumerate(loader):
                counts.append(session.samples)
                script.batch(number, x, y, session.step_due)
            session.switch("asp")
    return counts


@pytest.mark.parametrize("workers", [0, 2])
def test_a_schedule_counts_what_the_job_has_dealt_out(workers: int) -> None:
    (counts,) = run_job(count, 1, workers)
    assert counts == list(range(0, 2 * SAMPLES, 4))
