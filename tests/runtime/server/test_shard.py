"""One shard: reads that are never torn, and what it refuses."""

import multiprocessing
import os
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd

import pytest
import torch

from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.server.shard import ParameterShard
from polyrhythm.runtime.wire.shard_protocol import Hyperparameter, Layout, OptimizerSpec, Parameter, StateShape
from polyrhythm.runtime.wire.shared_memory import CHUNK, SEQUENCE, SharedVector, hand_untorn, read_untorn
from polyrhythm.training.compensation import Compensation
from polyrhythm.training.server import Push

SIZE = CHUNK + 1000


def make_shard() -> ParameterShard:
    layout = Layout(((Parameter("w", (SIZE,)),),))
    return ParameterShard(layout, 0, 1, OptimizerSpec("SGD", {"lr": 1.0}), Compensation())


def write_for_ever(pipe: Connection) -> None:
    """All parameters are equal at every version: minus the version."""
    torch.set_num_threads(1)
    shard = make_shard()
    assert shard.memory is not None
    pipe.send(DupFd(shard.memory.fd))
    gradient = torch.ones(SIZE)
    while not pipe.poll():
        shard.apply([Push(gradient)])


def test_reads_beside_a_writer_in_another_process_are_never_torn() -> None:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    writer = context.Process(target=write_for_ever, args=(there,), daemon=True)
    writer.start()
    memory = SharedVector(here.recv().detach(), SIZE, writable=False)
    out, last, whole = torch.empty(SIZE), 0, 0
    while whole < 20:
        version = read_untorn(memory, out, last)
        if version is not None:
            assert out.min() == out.max() == -version
            assert version >= last
            last, whole = version, whole + 1
    here.send("stop")
    writer.join(30)
    assert writer.exitcode == 0


def test_a_read_during_a_write_is_refused() -> None:
    shard = make_shard()
    memory = shard.memory
    assert memory is not None
    out = torch.empty(SIZE)
    assert read_untorn(memory, out, 0) == 0
    assert read_untorn(memory, out, 1) is None
    memory.words[SEQUENCE] += 1
    assert read_untorn(memory, out, 0) is None
    memory.words[SEQUENCE] += 1
    reader = SharedVector(os.dup(memory.fd), SIZE, writable=False)
    shard.apply([Push(torch.ones(SIZE))])
    assert read_untorn(reader, out, 1) == 1
    assert torch.equal(out, shard.vector)


def test_what_changes_while_it_is_handed_over_is_refused() -> None:
    shard, out = make_shard(), torch.empty(SIZE)
    memory = shard.memory
    assert memory is not None
    assert hand_untorn(memory, out.copy_, 0) == 0
    assert hand_untorn(memory, lambda _: pytest.fail("it is not there yet"), 1) is None
    assert hand_untorn(memory, lambda _: shard.apply([Push(torch.ones(SIZE))]), 0) is None
    assert hand_untorn(memory, out.copy_, 1) == 1
    assert torch.equal(out, shard.vector)
    memory.words[SEQUENCE] += 1
    assert hand_untorn(memory, lambda _: pytest.fail("it is being written"), 1) is None


def test_settings_that_do_not_fit_are_refused() -> None:
    shard = make_shard()
    with pytest.raises(PolyrhythmError, match="no setting 'learning_rate' of rank 3: "):
        shard.check_settings(({"learning_rate": 0.1},), "rank 3")
    with pytest.raises(PolyrhythmError, match="settings of rank 3 are for 2 groups but the model has 1"):
        shard.check_settings(({"lr": 0.1}, {"lr": 0.1}), "rank 3")
    with pytest.raises(PolyrhythmError, match=r"setting 'lr' of rank 3 is \(0.1,\), where the optimizer has"):
        shard.check_settings(({"lr": (0.1,)},), "rank 3")


def test_a_state_of_other_shapes_is_refused() -> None:
    """A momentum that is one number would end the server in its next step."""
    layout = Layout(((Parameter("scale", ()), Parameter("shift", ())),))
    shard = ParameterShard(layout, 0, 1, OptimizerSpec("Adam", {"lr": 1.0}), Compensation())
    shard.check_state(StateShape({"step": ((),), "exp_avg": ((2,),)}))
    wrong = [
        StateShape({"exp_avg": ((),)}),
        StateShape({"exp_avg": ((3,),)}),
        StateShape({"step": ((2,),)}),
        StateShape({"exp_avg": ((2,), (2,))}),
    ]
    for shape in wrong:
        with pytest.raises(PolyrhythmError, match="but the parameters have"):
            shard.check_state(shape)


@pytest.mark.parametrize(("kind", "count"), [("SGD", 1), ("SGD", 2), ("Adam", 1), ("Adam", 2)])
def test_a_group_without_elements_keeps_its_options(kind: str, count: int) -> None:
    layout = Layout(((Parameter("none", (0,)),), (Parameter("w", (8, 8)),), (Parameter("nothing", (3, 0)),)))
    optimizer = OptimizerSpec(kind, {}, ({"lr": 0.5}, {"lr": 0.25}, {"lr": 0.125}))
    shards = [ParameterShard(layout, index, count, optimizer, Compensation()) for index in range(count)]
    for shard in shards:
        settings: tuple[dict[str, Hyperparameter], ...] = ({"lr": 1.0}, {"lr": 0.5}, {})
        shard.check_settings(settings, "rank 0")
        shard.apply([Push(torch.ones(shard.span.elements))], settings=settings)
        shard.load(shard.vector.clone(), shard.state(), 1)
        assert shard.vector.max() < 0
