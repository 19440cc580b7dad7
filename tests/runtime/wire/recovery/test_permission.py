"""A coordinator and its standby on links that delay, lose and are cut: never do both go on."""

import random

import pytest

from polyrhythm.runtime.wire.recovery.permission import Permission, first_goes_on, standby_goes_on

LIMIT_S, PERIOD_S = 5.0, 0.5


@pytest.mark.parametrize("seed", range(300))
def test_the_first_has_given_up_when_the_standby_takes_over(seed: int) -> None:
    """Whatever is cut when, and however late messages come; each side looks at its own time."""
    chance = random.Random(seed)
    cut_s = chance.uniform(0.0, 20.0)
    lost = {"ping": chance.random() < 0.7, "pong": chance.random() < 0.7}  # the link may be cut in one direction only
    lost["ping"] |= not any(lost.values())
    delay_s = chance.choice((0.01, 0.3, 2.0))
    permission, heard_s = Permission(LIMIT_S, since_s=0.0), 0.0
    mail: list[tuple[float, str, int]] = []
    now_s = 0.0
    while now_s <= heard_s + LIMIT_S:
        now_s += PERIOD_S * chance.uniform(0.5, 1.5)
        for due_s, what, number in sorted(message for message in mail if message[0] <= now_s):
            if what == "ping":
                heard_s = max(heard_s, due_s)
                answer_s = due_s + chance.uniform(0.0, delay_s)
                mail += [(answer_s, "pong", number)] * (answer_s < cut_s or not lost["pong"])
            else:
                permission.answered(number)
        mail = [message for message in mail if message[0] > now_s]
        if permission.is_over(now_s):
            continue
        arrival_s, number = now_s + chance.uniform(0.0, delay_s), permission.ping(now_s)
        mail += [(arrival_s, "ping", number)] * (arrival_s < cut_s or not lost["ping"])
        if now_s > 1000.0:
            pytest.fail("nobody has noticed")
    assert permission.is_over(heard_s + LIMIT_S)


def test_of_hosts_that_are_parted_one_side_goes_on_at_most() -> None:
    for hosts in range(2, 9):
        for with_first in range(1, hosts):
            both = first_goes_on(hosts, with_first), standby_goes_on(hosts, hosts - with_first)
            assert sum(both) == 1
