"""Parameter shards and their workers, over both carriers and cut in several ways."""

import os
import socket

import pytest
import torch
from torch import Tensor

from polyrhythm.errors import FrameError, PolyrhythmError, ServerLostError
from polyrhythm.runtime.wire.frames import Payload, encode
from polyrhythm.runtime.wire.shard_protocol import (
    Layout,
    OptimizerSpec,
    Parameter,
    Pull,
    PushGradient,
    StateShape,
    Upload,
)
from polyrhythm.runtime.wire.worker_buffers import MAX_BUFFERS
from polyrhythm.training.optimizer import OptimizerState
from tests.runtime.shard_bench import Bench, MakeBench, Note

EMPTY = OptimizerState({}, {})


@pytest.fixture(params=[("unix", 1), ("unix", 3), ("tcp", 1), ("tcp", 2)], ids=lambda p: f"{p[0]}-{p[1]}")
def bench(request: pytest.FixtureRequest, make: MakeBench) -> Bench:
    return make(*request.param)


def test_a_push_is_held_applied_and_pulled(bench: Bench) -> None:
    worker = bench.worker(0)
    worker.upload(torch.ones(bench.size), EMPTY, version=5)
    bench.push(worker, 0, 0.25)
    assert torch.equal(bench.pull(worker), torch.ones(bench.size))
    bench.apply((0, 0))
    assert torch.equal(bench.pull(worker, 6), torch.full((bench.size,), 0.75))
    assert worker.version == 6


def test_the_weighted_mean_of_two_workers_is_one_update(bench: Bench) -> None:
    first, second = bench.worker(0), bench.worker(1)
    first.upload(torch.zeros(bench.size), EMPTY, version=0)
    bench.push(first, 0, 1.0)
    bench.push(second, 0, 5.0)
    bench.apply((0, 0, 3.0), (1, 0, 1.0), lr_scale=0.5)
    assert torch.equal(bench.pull(second, 1), torch.full((bench.size,), -1.0))


def test_every_element_goes_where_it_belongs(bench: Bench) -> None:
    worker = bench.worker(0)
    start, gradient = torch.randn(2, bench.size, generator=torch.Generator().manual_seed(1))
    worker.upload(start, EMPTY, version=0)
    bench.push(worker, 0, gradient)
    bench.apply((0, 0))
    assert torch.equal(bench.pull(worker, 1), start - gradient)


def test_a_pull_waits_for_its_version(bench: Bench) -> None:
    worker = bench.worker(0)
    worker.upload(torch.zeros(bench.size), EMPTY, version=0)
    bench.push(worker, 0, 1.0)
    bench.loop.call_later(0.01, lambda: bench.apply((0, 0)))
    assert torch.equal(bench.pull(worker, 1), torch.full((bench.size,), -1.0))


def test_settings_of_each_group_hold_from_the_push_that_brought_them(bench: Bench) -> None:
    worker = bench.worker(0)
    worker.upload(torch.zeros(bench.size), EMPTY, version=0)
    for number in range(3):
        bench.push(worker, number, 1.0)
    bench.apply((0, 0), settings=({"lr": 0.5}, {"lr": 2.0}))
    bench.apply((0, 1), lr_scale=2.0)
    bench.apply((0, 2), settings=({"lr": 1.0}, {"lr": 0.0}))
    pulled = bench.pull(worker, 3)
    assert torch.equal(pulled[:40], torch.full((40,), -0.5 - 1.0 - 1.0))
    assert torch.equal(pulled[40:], torch.full((24,), -2.0 - 4.0))


def test_dropped_gradients_are_forgotten_arrived_or_not(bench: Bench) -> None:
    worker = bench.worker(0)
    worker.upload(torch.zeros(bench.size), EMPTY, version=0)
    bench.push(worker, 0, 1.0)
    bench.drop((0, 0), (0, 1))
    worker.push(1, torch.ones(bench.size))
    bench.push(worker, 2, 4.0)
    assert (0, 1) not in bench.arrived
    bench.apply((0, 2))
    assert torch.equal(bench.pull(worker, 1), torch.full((bench.size,), -4.0))


def test_a_worker_may_push_again_while_its_gradient_is_held(bench: Bench) -> None:
    worker = bench.worker(0)
    worker.upload(torch.zeros(bench.size), EMPTY, version=0)
    for number in range(4):
        bench.push(worker, number, float(number))
        assert torch.equal(bench.pull(worker), torch.zeros(bench.size))
    bench.apply(*((0, number) for number in range(4)))
    assert torch.equal(bench.pull(worker, 1), torch.full((bench.size,), -1.5))


def test_one_slot_is_enough_for_one_gradient_at_a_time(bench: Bench) -> None:
    worker = bench.worker(0)
    worker.upload(torch.zeros(bench.size), EMPTY, version=0)
    for number in range(5):
        bench.push(worker, number, 1.0)
        bench.apply((0, number))
        bench.pull(worker, number + 1)
    (place,) = bench.group.service.all_buffers.values()
    assert len(place.vectors) == 1


def test_gradients_that_nobody_takes_cannot_fill_the_memory(make: MakeBench) -> None:
    bench = make("tcp", 1, sizes=(16,))
    worker = bench.worker(0)
    for number in range(MAX_BUFFERS):
        bench.push(worker, number, 0.0)
    worker.push(MAX_BUFFERS, torch.zeros(16))
    bench.until(lambda: bench.lost)
    assert "64 gradients that nobody has applied or dropped" in bench.lost[0]


@pytest.mark.parametrize("carrier", ["unix", "tcp"])
@pytest.mark.parametrize("shards", [1, 2])
def test_parameters_and_momentum_travel_both_ways(make: MakeBench, carrier: str, shards: int) -> None:
    adam = OptimizerSpec("Adam", {"lr": 0.1, "betas": [0.9, 0.99]}, ({"lr": 0.1}, {"lr": 0.2}))
    bench = make(carrier, shards, optimizer=adam)
    reference = reference_adam(bench.size)
    worker = bench.worker(0)
    worker.upload(reference_vector(reference).clone(), EMPTY, version=0)
    for number in range(3):
        gradient = step(reference, number)
        bench.push(worker, number, gradient)
        bench.apply((0, number))
    parameters, state, version = worker.download(3)
    assert version == 3
    assert torch.equal(parameters, reference_vector(reference))
    other = make("unix" if carrier == "tcp" else "tcp", 3 - shards, optimizer=adam)
    heir = other.worker(0)
    heir.upload(parameters, state, version)
    other.push(heir, 3, step(reference, 3))
    other.apply((0, 3))
    assert torch.allclose(other.pull(heir, 4), reference_vector(reference), atol=1e-7)


def reference_adam(size: int) -> torch.optim.Adam:
    vector = torch.linspace(-1, 1, size)
    groups = [{"params": [vector[:40]], "lr": 0.1}, {"params": [vector[40:]], "lr": 0.2}]
    return torch.optim.Adam(groups, betas=(0.9, 0.99), fused=True)


def reference_vector(optimizer: torch.optim.Adam) -> Tensor:
    return torch.cat([group["params"][0] for group in optimizer.param_groups])


def step(optimizer: torch.optim.Adam, seed: int) -> Tensor:
    """Step on a random gradient; the gradient."""
    gradient = torch.randn(64, generator=torch.Generator().manual_seed(seed))
    for group, part in zip(optimizer.param_groups, (gradient[:40], gradient[40:]), strict=True):
        group["params"][0].grad = part.clone()
    optimizer.step()
    return gradient


@pytest.mark.parametrize("carrier", ["unix", "tcp"])
def test_delay_compensation_uses_what_the_worker_really_read(make: MakeBench, carrier: str) -> None:
    bench = make(carrier, compensation="dc-asgd:lambda=0.5")
    slow, fast = bench.worker(0), bench.worker(1)
    slow.upload(torch.ones(bench.size), EMPTY, version=0)
    bench.pull(slow)
    bench.pull(fast)
    bench.push(fast, 0, 0.5)
    bench.apply((1, 0))  # no drift: w = 1 - 0.5
    bench.push(slow, 0, 2.0)
    bench.apply((0, 0, 1.0, 1))  # w - read = -0.5, so g = 2 + 0.5 * 4 * -0.5 = 1
    assert torch.equal(bench.pull(fast, 2), torch.full((bench.size,), -0.5))


@pytest.mark.parametrize("carrier", ["unix", "tcp"])
def test_a_held_gradient_keeps_the_backup_of_its_own_read(make: MakeBench, carrier: str) -> None:
    bench = make(carrier, compensation="dc-asgd:lambda=0.5")
    slow, fast = bench.worker(0), bench.worker(1)
    slow.upload(torch.ones(bench.size), EMPTY, version=0)
    bench.pull(slow)
    bench.push(slow, 0, 2.0)
    bench.push(fast, 0, 0.5)
    bench.apply((1, 0))
    bench.pull(slow, 1)  # its first gradient, from the read before, is still held
    bench.apply((0, 0, 1.0, 1))
    assert torch.equal(bench.pull(fast, 2), torch.full((bench.size,), -0.5))


def test_staleness_divides_the_rate(make: MakeBench) -> None:
    bench = make(compensation="lr-staleness")
    worker = bench.worker(0)
    worker.upload(torch.zeros(bench.size), EMPTY, version=0)
    bench.push(worker, 0, 1.0)
    bench.apply((0, 0, 1.0, 4))
    assert torch.equal(bench.pull(worker, 1), torch.full((bench.size,), -0.25))


def test_the_next_gradient_can_be_written_in_place(make: MakeBench) -> None:
    bench = make()
    worker = bench.worker(0)
    worker.upload(torch.zeros(bench.size), EMPTY, version=0)
    buffer = worker.gradient_buffer()
    assert buffer is not None
    buffer.fill_(3.0)
    bench.push(worker, 0, buffer)
    bench.apply((0, 0))
    assert torch.equal(bench.pull(worker, 1), torch.full((bench.size,), -3.0))
    assert make("tcp").worker(0).gradient_buffer() is None


def test_parameters_are_handed_over_where_they_are_if_they_are_shared(make: MakeBench) -> None:
    for bench in (make(), make("tcp")):
        worker, out = bench.worker(0), torch.zeros(bench.size)
        worker.upload(torch.full((bench.size,), 2.0), EMPTY, version=7)
        assert not worker.hand(out.copy_, version=8)
        assert worker.hand(out.copy_, version=7) == worker.shared
        assert torch.equal(out, torch.full((bench.size,), 2.0 if worker.shared else 0.0))
        assert worker.version == (7 if worker.shared else 0)


def test_a_gradient_in_shared_memory_is_named_when_its_step_is_told(make: MakeBench) -> None:
    for bench in (make(), make("tcp")):
        worker, service = bench.worker(0), bench.group.service
        buffer = worker.put(3, torch.Tensor.zero_)
        assert (buffer is not None) == worker.shared
        if buffer is None:
            with pytest.raises(FrameError, match="rank 0 named buffer 0, but shares none"):
                service.pushed(0, 3, 0, ())
        held = buffer is not None and service.pushed(0, 3, buffer, ())
        assert (held, service.pushed(0, 3, None, ())) == (worker.shared, worker.shared)


def test_a_named_gradient_that_was_dropped_before_is_not_held(bench: Bench) -> None:
    worker, service = bench.worker(0), bench.group.service
    bench.drop((0, 3))
    if (buffer := worker.put(3, torch.Tensor.zero_)) is not None:
        assert not service.pushed(0, 3, buffer, ())
        assert service.pushed(0, 4, buffer, ())


def test_another_model_is_refused_and_the_first_difference_named(bench: Bench) -> None:
    bench.worker(0)
    other = Layout(((Parameter("w0", (40,)),), (Parameter("w1", (4, 6)),)))
    with pytest.raises(PolyrhythmError, match=r"parameter 1 is w1 \(4, 6\) in group 1 here and w1 \(24,\) in group 1"):
        bench.worker(1, other)
    bench.push(bench.worker(2), 0, 1.0)


def test_another_optimizer_is_refused(bench: Bench) -> None:
    bench.worker(0)
    bench.optimizer = OptimizerSpec("Adam", {})
    with pytest.raises(PolyrhythmError, match="rank 1 uses the optimizer Adam, the first worker SGD"):
        bench.worker(1)


@pytest.mark.parametrize(
    ("optimizer", "complaint"),
    [
        (OptimizerSpec("SDG", {}), "unknown optimizer 'SDG': did you mean SGD"),
        (OptimizerSpec("SGD", {"lr": -1.0}), "Invalid learning rate: -1.0"),
        (OptimizerSpec("SGD", {"rate": 1.0}), "has no option 'rate'"),
        (OptimizerSpec("SGD", {}, ({"lr": 0.1},)), "optimizer has 1 groups but the model 2"),
        (OptimizerSpec("os:system", {}), "os:system is not from torch.optim; the job's owner must allow it"),
    ],
)
def test_an_optimizer_that_cannot_be_built_is_refused(
    make: MakeBench, optimizer: OptimizerSpec, complaint: str
) -> None:
    bench = make(optimizer=optimizer)
    with pytest.raises(PolyrhythmError, match=complaint):
        bench.worker(0)


def test_an_optimizer_of_the_owner_is_imported(make: MakeBench) -> None:
    spec = OptimizerSpec("torch.optim.sgd:SGD", {"lr": 1.0})
    bench = make(optimizer=spec, allowed=("torch.optim.sgd:SGD",))
    worker = bench.worker(0)
    bench.push(worker, 0, 1.0)
    bench.apply((0, 0))
    assert torch.equal(bench.pull(worker, 1), torch.full((bench.size,), -1.0))


def test_what_is_allowed_must_be_an_optimizer(make: MakeBench) -> None:
    bench = make(optimizer=OptimizerSpec("os:system", {}), allowed=("os:system",))
    with pytest.raises(PolyrhythmError, match="os:system is no subclass of"):
        bench.worker(0)


def test_an_optimizer_that_needs_whole_tensors_gets_one_shard(make: MakeBench) -> None:
    adafactor = OptimizerSpec("Adafactor", {})
    assert make(optimizer=adafactor).worker(0)
    with pytest.raises(PolyrhythmError, match="Adafactor needs whole tensors; use one shard instead of 2"):
        make(shards=2, optimizer=adafactor).worker(0)


@pytest.mark.parametrize(
    ("message", "numbers", "complaint"),
    [
        (PushGradient(0), 63, "63 numbers of float32 but the shard expects 64 of float32"),
        (PushGradient(0), None, "pushed without a gradient"),
        (Pull(0), 64, "sent numbers with a Pull, which has none"),
        (Upload(1, StateShape({"m": ((40,), (23,))})), 64, "optimizer state 'm' has shapes"),
        (Upload(1, StateShape({"m": ((40,), (24,))})), 64, "64 numbers of float32 but the shard expects 128"),
        (Upload(1, StateShape({"m": ((2**40,), (2**40,))})), 2**30, "optimizer state 'm' has shapes"),
        (Upload(1, StateShape({}, {"step": (1.0,)})), 64, "optimizer state 'step' has 1 values for 2 tensors"),
        (Note("push me"), 64, "sent numbers with a Note, which has none"),
    ],
)
def test_a_worker_that_breaks_the_protocol_is_cut_off(
    make: MakeBench, message: object, numbers: int | None, complaint: str
) -> None:
    bench = make("tcp")
    worker, healthy = bench.worker(0), bench.worker(1)
    (channel,) = worker.channels
    about = None if numbers is None else Payload("float32", numbers)
    channel.send(message, None if about is None else memoryview(bytes(min(about.nbytes, 1024))), about)
    bench.until(lambda: bench.lost)
    assert complaint in bench.lost[0]
    bench.push(healthy, 0, 1.0)


@pytest.mark.parametrize("message", [PushGradient(0, 1), PushGradient(0, -1), Pull(0, 7)])
def test_a_slot_that_does_not_exist_is_refused(make: MakeBench, message: object) -> None:
    bench = make()
    (channel,) = bench.worker(0).channels
    channel.send(message)
    bench.until(lambda: bench.lost)
    assert "which is not free" in bench.lost[0]


def test_nothing_can_be_pushed_before_the_model_is_known(make: MakeBench) -> None:
    bench = make()
    client = bench.worker(0)
    bench.group.forget(0)
    client.channels[0].send(PushGradient(0))
    bench.until(lambda: bench.lost)
    assert "did not open the shard before it used it" in bench.lost[0]


def test_a_worker_that_is_forgotten_can_come_back(bench: Bench) -> None:
    worker = bench.worker(0)
    worker.upload(torch.zeros(bench.size), EMPTY, version=3)
    bench.push(worker, 0, 1.0)
    worker.close()
    bench.drop((0, 0))
    bench.group.forget(0)
    bench.arrived.clear()
    again = bench.worker(0)
    bench.push(again, 0, 2.0)
    bench.apply((0, 0))
    assert torch.equal(bench.pull(again, 4), torch.full((bench.size,), -2.0))


def test_gradients_of_a_lost_worker_stay_until_the_hub_decides(bench: Bench) -> None:
    worker, other = bench.worker(0), bench.worker(1)
    worker.upload(torch.zeros(bench.size), EMPTY, version=0)
    bench.push(worker, 0, 1.0)
    worker.close()
    bench.until(lambda: bench.lost)
    bench.apply((0, 0))
    bench.group.forget(0)
    assert torch.equal(bench.pull(other, 1), torch.full((bench.size,), -1.0))


def test_a_worker_that_does_not_read_holds_nobody_up(make: MakeBench) -> None:
    bench = make("tcp", sizes=(4_000_000,))
    stalled, other = bench.worker(0), bench.worker(1)
    sock = socket.socket(fileno=os.dup(stalled.channels[0].socket.fileno()))
    stalled.close()  # its connection lives on in the copy, which nobody reads
    sock.setblocking(True)
    sock.send(bytes(encode(Pull(0))))
    bench.until(lambda: bench.channels[0].sending)
    bench.push(other, 0, 1.0)
    bench.apply((1, 0))
    assert torch.equal(bench.pull(other, 1), torch.full((bench.size,), -1.0))
    assert bench.channels[0].sending
    sock.close()
    bench.until(lambda: 0 in bench.lost)


def test_a_silent_server_is_named_with_rank_and_phase(make: MakeBench) -> None:
    bench = make()
    worker = bench.worker(4)
    with pytest.raises(ServerLostError, match=r"rank 4 got no answer within 0\.01 s while it waited for Go"):
        worker.wait(lambda: False, "while it waited for Go", timeout_s=0.01)


def test_a_lost_server_is_named_with_rank_and_phase(bench: Bench) -> None:
    worker = bench.worker(4)
    bench.channels[4].close()
    with pytest.raises(
        ServerLostError, match=r"rank 4 lost server 0 while version 1 was pulled: .*closed the connection"
    ):
        bench.pull(worker, 1)
