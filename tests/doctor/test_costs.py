import numpy as np
import pytest

from polyrhythm.doctor.costs import cost_by_size
from tests.doctor.jobs import EXCHANGE_S, SENT, job, linked


def test_without_bytes_all_of_the_exchange_counts_as_one() -> None:
    cost = cost_by_size(job(np.full((4, 60), 0.02)))
    assert list(cost[:3]) == pytest.approx([EXCHANGE_S, EXCHANGE_S, 1.0])
    assert 1.5 / cost.bytes_per_s == pytest.approx(np.full(4, EXCHANGE_S))


def test_an_exchange_that_takes_no_time_has_no_bytes() -> None:
    evidence = job(np.full((2, 60), 0.02))
    evidence.communication_s[:] = 0
    assert cost_by_size(evidence).message_bytes == 0


def test_a_ring_tells_the_message_and_the_rates() -> None:
    """Each rank sends 2 * 3 / 4 of a message in each step; the slow link is busy for the whole exchange."""
    cost = cost_by_size(linked(job(np.full((4, 60), 0.02)), slow=1, times=4.0, exchange_s=0.03))
    assert cost.message_bytes == pytest.approx(SENT * 0.05 / 1.5)
    assert [cost.seconds, cost.wire_s] == pytest.approx([0.03, 0.03])
    assert cost.bytes_per_s == pytest.approx(SENT * 0.05 / 0.03 * np.array([4, 1, 4, 4]))


def test_what_is_hidden_makes_a_link_quicker() -> None:
    evidence = linked(job(np.full((4, 60), 0.02)), slow=1, times=4.0, exchange_s=0.03)
    evidence.communication_s[:] = 0.01
    cost = cost_by_size(evidence)
    assert cost.wire_s == pytest.approx(0.01)
    assert cost.fixed_s == pytest.approx(0.0)
    assert 1.5 * cost.message_bytes / cost.bytes_per_s[1] == pytest.approx(0.01)
