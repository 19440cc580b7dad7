"""Sums over buffers as collectives that never raise."""

from typing import Any

import pytest
import torch

from polyrhythm.runtime.collectives.gloo_connections import GlooSockets
from polyrhythm.runtime.collectives.group_health import GroupHealth
from polyrhythm.runtime.collectives.shared.exchanges import Offer, SharedExchanges
from tests.runtime.collectives.shared.test_buffers import buffers
from tests.runtime.members import together


def sums() -> list[SharedExchanges]:
    return [SharedExchanges(side, GroupHealth(GlooSockets(()))) for side in buffers()]


def offer(member: SharedExchanges, tensor: torch.Tensor) -> Offer:
    found = member.offer("allreduce", [tensor], None)
    assert found is not None
    return found


def test_sums_come_in_the_order_in_which_they_were_started() -> None:
    """Some under way in the thread, the last one in the caller's."""
    members = sums()

    def act(rank: int) -> list[list[float]]:
        tensors = [torch.full((2, 2), float(step + rank)) for step in range(4)]
        works = [offer(members[rank], tensor).start() for tensor in tensors[:3]]
        offer(members[rank], tensors[3]).run_now()
        assert [work.is_completed() for work in works] == [True] * 3
        assert [work.get_future().value()[0] is tensor for work, tensor in zip(works, tensors[:3], strict=True)]
        assert works[0].is_success()
        return [tensor.flatten().tolist() for tensor in tensors]

    assert together(act) == [[[2.0 * step + 1] * 4 for step in range(4)]] * 2
    for member in members:
        member.close()


def test_a_sum_may_follow_another_in_its_thread() -> None:
    """As in hooks of DistributedDataParallel that exchange in two rounds; what is summed up here comes after both."""
    members = sums()

    def act(rank: int) -> list[float]:
        first, second, third = (torch.full((1,), float(number + rank)) for number in range(3))
        both: torch.futures.Future[Any] = torch.futures.Future()

        def follow(_: object) -> None:
            both.set_result(offer(members[rank], second).start().get_future().wait())

        offer(members[rank], first).start().get_future().add_done_callback(follow)
        offer(members[rank], third).run_now()
        both.wait()
        return [first.item(), second.item(), third.item()]

    assert together(act) == [[1.0, 3.0, 5.0]] * 2
    for member in members:
        member.close()


def test_an_interrupt_in_the_middle_ends_the_epoch() -> None:
    first, second = sums()

    def interrupt() -> None:
        raise KeyboardInterrupt

    def act(rank: int) -> None:
        if rank:
            offer(second, torch.ones(1)).run_now()
        else:
            with pytest.raises(KeyboardInterrupt):
                offer(first, torch.ones(1)).run_now(interrupt)

    together(act)
    assert first._health.failure is not None
    for member in (first, second):
        member.close()


def test_a_parameter_that_requires_a_gradient_is_summed_up() -> None:
    members, tensors = sums(), [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    together(lambda rank: offer(members[rank], tensors[rank]).run_now())
    assert [tensor.tolist() for tensor in tensors] == [[2.0, 2.0]] * 2
    for member in members:
        member.close()


def test_a_lost_member_fails_the_epoch_and_ends_what_is_under_way() -> None:
    first, second = sums()
    work = offer(first, torch.ones(1)).start()
    second.close()
    work.wait()
    assert (first._health.failure or "").startswith("the members' sum failed: ")
    offer(first, torch.ones(1)).start().wait()
    offer(first, torch.ones(1)).run_now()
    first.close()


def test_a_failure_of_the_epoch_ends_what_is_under_way() -> None:
    first, second = sums()
    work = offer(first, torch.ones(1)).start()
    first._health.fail("enough of it")
    work.wait()
    for member in (first, second):
        member.close()


def test_different_shapes_fail_the_epoch() -> None:
    members = sums()
    together(lambda rank: offer(members[rank], torch.ones(1 + rank)).run_now())
    for member in members:
        assert "float32 here" in (member._health.failure or "")
        member.close()


@pytest.mark.parametrize("started", [False, True])
def test_a_child_lets_go_without_a_word(started: bool) -> None:
    """What a forked loader's worker does with its copies: the parents' connection stands."""
    members = sums()
    if started:
        together(lambda rank: offer(members[rank], torch.ones(1)).start().wait())
    members[0].forget_in_child()
    members[0].close()
    assert members[0]._health.failure is None
    members[1].close()
