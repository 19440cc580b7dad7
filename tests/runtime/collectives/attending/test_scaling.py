"""A script's GradScalers: that of a rank that leaves a step out, and those that have come apart."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._C._distributed_c10d import TCPStore
from torch.amp import GradScaler

from polyrhythm.runtime.collectives.attending.scaling import (
    EAR,
    ScalerEar,
    ScalerState,
    agree_on_scales,
    state_of,
    update,
)
from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.testing.processes import run_workers

SIZE = 3


def make_scaler(scale: float = 64.0, interval: int = 3) -> GradScaler:
    return GradScaler("cpu", init_scale=scale, growth_factor=1.7, backoff_factor=0.3, growth_interval=interval)


def use(scaler: GradScaler, finite: bool = True) -> float:
    """A step of a script; the scale of its loss."""
    parameter = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    loss = scaler.scale(parameter.sum())
    (loss if finite else loss * torch.inf).backward()  # type: ignore[no-untyped-call]
    scaler.step(optimizer)
    scaler.update()
    return loss.item()


@given(steps=st.lists(st.booleans(), max_size=20), scale=st.sampled_from([64.0, 3e38]))
def test_a_step_left_out_does_to_the_scaler_what_it_does_on_the_others(steps: Sequence[bool], scale: float) -> None:
    theirs, own = make_scaler(scale), make_scaler(scale)
    for made in (theirs, own):
        made.scale(torch.zeros(1))
    for finite in steps:
        use(theirs, finite)
        update(own, finite)
        assert state_of(own) == state_of(theirs)


def test_what_is_agreed_on_holds_from_the_next_loss_on() -> None:
    """The script may update its scaler in between, at the end of the step before."""
    ear, used, unused = ScalerEar(), make_scaler(), make_scaler()
    ear.hear(used)
    ear.expect([(8.0, 1), (4.0, 2)])
    for scaler in (used, unused):
        use(scaler)
        ear.hear(scaler)
    assert [state_of(used), state_of(unused)] == [(8.0, 1), (4.0, 2)]
    use(used)
    ear.hear(used)
    assert state_of(used) == (8.0, 2), "it goes on from there"


def test_a_scaler_that_is_never_used_is_not_that_of_the_others() -> None:
    ear, unused = ScalerEar(), make_scaler()
    assert ear.of_others() is not None, "it may be, as long as this process has made no step"
    ear = ScalerEar()
    ear.tried = True
    assert ear.of_others() is None, unused


def test_a_scaler_for_each_epoch_may_not_be_used_yet() -> None:
    ear = ScalerEar()
    ear.tried = True
    ear.hear(make_scaler())
    unused = make_scaler()
    assert ear.of_others() is not None, unused


def agree(rank: int, port: int) -> list[ScalerState]:
    """Ranks 0 and 1 have used two scalers, in which they differ; rank 2, a newcomer, one for a step that is none."""
    store = TCPStore("127.0.0.1", port, is_master=False)
    generation = Generation(store, "all", range(SIZE), rank)
    agree_on_scales(generation)  # nobody has any
    EAR.listen()
    scalers = [make_scaler(), make_scaler(100.0)]
    for scaler in scalers if rank < 2 else scalers[:1]:
        use(scaler, finite=rank < 2)
        use(scaler, finite=rank < 2)
    if rank == 1:
        use(scalers[0], finite=False)
        use(scalers[1])
    agree_on_scales(generation, has_say=rank < 2)
    for scaler in scalers:
        scaler.scale(torch.zeros(1))
    store.set(f"through/{rank}", "")  # who is through first must not leave the others
    store.wait([f"through/{other}" for other in range(SIZE)])
    return [state_of(scaler) for scaler in scalers]


def test_all_have_the_least_of_those_who_have_used_theirs(store: TCPStore) -> None:
    least = pytest.approx(64.0 * 0.3)
    assert run_workers(agree, SIZE, store.port) == [[(least, 0), (100.0, 0)]] * SIZE
