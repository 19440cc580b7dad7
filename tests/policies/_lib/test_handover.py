import pytest

from polyrhythm.core import Cluster, Joined, Left, Proceed, Report, Sync
from polyrhythm.errors import SpecError
from polyrhythm.policies import ASP, BSP, SSP, KGroup, parse_policy
from polyrhythm.policies._lib.handover import Charge, require_plain_gradients

CLUSTER = Cluster(workers=3)


def started(charge: Charge) -> Charge:
    return charge.decide(Joined((0, 1, 2), 0.0))[0]


def test_held_gradients_are_applied_and_the_waiting_go_on() -> None:
    charge = started(Charge.of(BSP(), CLUSTER))
    for worker in (2, 0):
        charge, _ = charge.decide(Report(worker, 1, 1.0))
    charge, decisions = charge.follow(ASP(), CLUSTER, Report(1, 1, 2.0))
    assert decisions == (Sync((0, 1, 2)), Proceed((0, 1, 2)))
    assert charge.decide(Report(1, 2, 3.0))[1] == (Sync((1,)), Proceed((1,)))


def test_running_workers_report_to_the_new_rule() -> None:
    charge = started(Charge.of(KGroup(3), CLUSTER))
    charge, decisions = charge.follow(KGroup(2), CLUSTER, Report(0, 1, 1.0))
    assert decisions == (Sync((0,)), Proceed((0,)))
    charge, decisions = charge.decide(Report(1, 1, 2.0))
    assert decisions == (Sync((1,)),)
    assert charge.decide(Report(2, 1, 3.0))[1] == (Sync((2,)), Proceed((1, 2)))


def test_the_new_rule_knows_the_clocks() -> None:
    charge = started(Charge.of(ASP(), CLUSTER))
    for clock in (1, 2, 3):
        charge, _ = charge.decide(Report(0, clock, float(clock)))
    charge, decisions = charge.follow(SSP(1), CLUSTER, Report(0, 4, 4.0))
    assert decisions == (Sync((0,)), Proceed((0,)))
    assert charge.decide(Report(0, 5, 5.0))[1] == (Sync((0,)),)


def test_the_same_rule_simply_goes_on() -> None:
    charge = started(Charge.of(KGroup(2), CLUSTER))
    report = Report(0, 1, 1.0)
    assert charge.follow(KGroup(2), CLUSTER, report) == charge.decide(report)


def test_who_has_left_is_forgotten() -> None:
    charge = started(Charge.of(BSP(), CLUSTER))
    charge, _ = charge.decide(Report(0, 1, 1.0))
    charge, _ = charge.decide(Left(0, 2.0, 1))
    assert charge.hand_over(ASP(), CLUSTER, 3.0)[1] == ()


@pytest.mark.parametrize("spec", ["local:3", "k-sync:2"])
def test_rules_that_cannot_take_over_are_refused(spec: str) -> None:
    with pytest.raises(SpecError, match="let steps finish"):
        require_plain_gradients("base", parse_policy(spec))
