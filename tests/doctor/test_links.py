from dataclasses import replace

import numpy as np
import pytest

from polyrhythm.doctor.evidence import Evidence
from polyrhythm.doctor.links import slow_links
from tests.doctor.jobs import SENT, drawn, job, linked


def ring(slow: int = 1, times: float = 5.0, looks: int = 8) -> Evidence:
    return linked(job(drawn()), slow, times, 0.03, looks)


def test_the_link_that_needs_longest_for_its_bytes_is_named() -> None:
    (one,) = slow_links(ring())
    assert (one.rank, one.peer, one.part, one.kind, one.late_share) == (1, 2, "link", "persistent", 1.0)
    # It takes three fifths of each step, and the others need a fifth of that.
    assert one.lost_share == pytest.approx(0.8 * 0.6, rel=0.05)


def test_links_that_are_all_alike_are_not_named() -> None:
    assert slow_links(ring(times=1.0)) == []


def test_twice_as_slow_is_not_enough_and_neither_are_two_looks() -> None:
    assert slow_links(ring(times=1.9)) == []
    assert slow_links(ring(looks=2)) == []


def test_what_the_backward_pass_hides_costs_nothing() -> None:
    evidence = ring()
    hidden = replace(evidence, communication_s=np.full_like(evidence.own_s, 1e-4))
    assert slow_links(hidden) == []


def test_a_connection_that_carries_words_only_is_no_link_of_the_exchange() -> None:
    evidence = ring(times=1.0)
    words = replace(evidence.links[0], receiver=3, sent=evidence.links[0].sent * 0.01)
    assert slow_links(replace(evidence, links=(*evidence.links, words))) == []


def test_links_within_a_host_are_not_compared_with_those_between_hosts() -> None:
    evidence = ring(times=1.0)
    within = replace(evidence.links[0], local=True, needed_s=evidence.links[0].needed_s * 1e-3)
    assert slow_links(replace(evidence, links=(within, *evidence.links[1:]))) == []


def test_a_link_that_is_slow_for_a_while_is_transient() -> None:
    evidence = ring(times=1.0)
    link = evidence.links[3]
    while_slow = np.where(np.arange(8) < 3, 6.0, 1.0)
    others = [replace(one, needed_s=one.needed_s / 6) for one in evidence.links[:3]]
    (one,) = slow_links(replace(evidence, links=(*others, replace(link, needed_s=link.needed_s * while_slow / 6))))
    assert (one.rank, one.kind, one.late_share) == (3, "transient", 3 / 8)
    assert link.byte_s == pytest.approx(link.needed_s[0] / SENT)
