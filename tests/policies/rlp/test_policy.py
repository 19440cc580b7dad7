import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings

from polyrhythm.core import (
    Cluster,
    Decisions,
    Entry,
    Joined,
    Left,
    LossMeasured,
    MeasureLoss,
    Policy,
    Proceed,
    Report,
    Sync,
)
from polyrhythm.errors import SpecError
from polyrhythm.policies import RLP, SSP, KGroup, parse_policy
from polyrhythm.policies.rlp.network import Layer, Learned, ValueNetwork
from polyrhythm.policies.rlp.views import VIEWS
from polyrhythm.testing import ClusterScript, ScriptPlayer, conformance, scripts
from tests.policies.learned import learned, written

few = settings(max_examples=15, deadline=None, derandomize=True, database=None)


def decided(policy: Policy[Any], script: ClusterScript) -> list[Entry]:
    """Events, without the losses that only some policies are told, and decisions."""
    entries = ScriptPlayer(policy, script).play().entries
    return [Entry(event._replace(loss=None) if isinstance(event, Report) else event, made) for event, made in entries]


@pytest.fixture
def paper(tmp_path: Path) -> str:
    return written(tmp_path, learned("paper"), "paper.json")


@pytest.fixture
def phase(tmp_path: Path) -> str:
    return written(tmp_path, learned("phase"), "phase.json")


@pytest.mark.parametrize(("view", "keep"), [("paper", False), ("phase", False), ("phase", True)])
@pytest.mark.parametrize("fallback", ["bsp", "ssp:1"])
def test_conformance(tmp_path: Path, view: str, keep: bool, fallback: str) -> None:
    file = written(tmp_path, learned(view, window=1, keep=keep))
    conformance(RLP(file, fallback=parse_policy(fallback), probe=2), examples=10)()


@pytest.mark.parametrize("view", ["paper", "phase"])
def test_conformance_with_a_probe_batch(tmp_path: Path, view: str) -> None:
    file = written(tmp_path, learned(view, window=1))
    conformance(RLP(file, fallback=parse_policy("ssp:1"), probe=2, loss="probe"), examples=10)()


@few
@given(script=scripts())
def test_restricted_to_self_it_is_asp(script: ClusterScript, tmp_path_factory: pytest.TempPathFactory) -> None:
    file = written(tmp_path_factory.mktemp("rlp"), learned("paper"))
    assert decided(RLP(file, only="self"), script) == decided(parse_policy("asp"), script)


@few
@given(script=scripts())
def test_restricted_to_nobody_it_is_a_group_of_all(
    script: ClusterScript, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """ "nobody" while everyone is idle means all: the schedule of BSP, each gradient applied when it arrives."""
    file = written(tmp_path_factory.mktemp("rlp"), learned("paper"))
    assert decided(RLP(file, only="nobody"), script) == decided(KGroup(99), script)


@few
@given(script=scripts())
def test_restricted_to_one_it_is_asp(script: ClusterScript) -> None:
    assert decided(RLP(only="1"), script) == decided(parse_policy("asp"), script)


def reports(count: int, workers: int = 2, loss: float | None = 1.0) -> list[Report]:
    return [
        Report(at % workers, 1 + at // workers, 1.0 + at, step_s=float(workers), loss=loss and loss / (1 + 0.01 * at))
        for at in range(count)
    ]


def policies(policy: RLP, events: list[Report], workers: int = 2) -> list[str]:
    """The chosen in charge after each event."""
    state, _ = policy.decide(policy.init(Cluster(workers)), Joined(tuple(range(workers)), 0.0))
    seen = []
    for event in events:
        state, _ = policy.decide(state, event)
        seen.append(state.charge.policy.spec)
    return seen


def test_the_fallback_until_there_is_something_to_choose_by(tmp_path: Path) -> None:
    policy = RLP(written(tmp_path, learned(best=3)), probe=0)
    assert policies(policy, reports(8)) == ["asp"] * 3 + ["k-group:2"] * 5


def with_the_loss(weight: float, keep: bool) -> Learned:
    """It takes the last action while the log of the loss times `weight` is above zero, and the first below."""
    policy = learned(best=0, keep=keep)
    rows = tuple(tuple(weight * (action == 3 and at == 7) for at in range(14)) for action in range(4))
    return replace(policy, network=ValueNetwork((Layer(rows, (0.0,) * 4),)))


def test_the_first_choice_is_kept_if_the_file_says_so(tmp_path: Path) -> None:
    events = [report._replace(loss=2.0 if at < 12 else 0.5) for at, report in enumerate(reports(40))]
    often = policies(RLP(written(tmp_path, with_the_loss(1.0, keep=False)), probe=0), events)
    once = policies(RLP(written(tmp_path, with_the_loss(1.0, keep=True), "once.json"), probe=0), events)
    assert (often[8], once[8]) == ("k-group:2", "k-group:2")
    assert (often[-1], set(once[8:])) == ("k-group:1", {"k-group:2"})


def test_a_choice_is_made_anew_when_workers_come_or_go(tmp_path: Path) -> None:
    policy = RLP(written(tmp_path, learned(best=3, keep=True)), probe=0)
    state, _ = policy.decide(policy.init(Cluster(3)), Joined((0, 1, 2), 0.0))
    for report in reports(12, workers=3):
        state, _ = policy.decide(state, report)
    assert state.charge.policy.spec == "k-group:3"
    state, _ = policy.decide(state, Left(2, 14.0, 4))
    seen = []
    for at in range(5):
        state, _ = policy.decide(state, Report(at % 2, 5 + at // 2, 15.0 + at, step_s=2.0, loss=0.5))
        seen.append(state.charge.policy.spec)
    assert seen == ["asp"] * 3 + ["k-group:2"] * 2


def test_a_choice_goes_on_into_the_next_epoch(tmp_path: Path) -> None:
    policy = RLP(written(tmp_path, learned(best=3, keep=True)), probe=0)
    state, _ = policy.decide(policy.init(Cluster(3)), Joined((0, 1, 2), 0.0))
    for report in reports(12, workers=3):
        state, _ = policy.decide(state, report)
    for worker in range(3):
        state, _ = policy.decide(state, Left(worker, 14.0, 4, "finished"))
    state, _ = policy.decide(state, Joined((0, 1, 2), 15.0))
    state, _ = policy.decide(state, Report(0, 1, 16.0, step_s=1.0, loss=0.5))
    assert state.charge.policy.spec == "k-group:3"
    state, _ = policy.decide(state, Joined((3,), 17.0))
    state, _ = policy.decide(state, Report(1, 1, 18.0, step_s=1.0, loss=0.5))
    assert state.charge.policy.spec == "asp"


def test_without_losses_the_fallback_stays(paper: str, phase: str) -> None:
    for file in (paper, phase):
        assert set(policies(RLP(file, fallback=SSP(4)), reports(30, loss=None))) == {"ssp:4"}


def test_losses_that_stop_bring_the_fallback_back(tmp_path: Path) -> None:
    policy = RLP(written(tmp_path, learned(best=3)), probe=0)
    later = [report._replace(loss=None) for report in reports(12)[8:]]
    assert policies(policy, [*reports(8), *later])[-4:] == ["asp"] * 4


def test_outside_of_the_conditions_the_fallback_is_in_charge(tmp_path: Path) -> None:
    policy = RLP(written(tmp_path, learned(best=3, workers=(3, 9))), probe=0)
    assert set(policies(policy, reports(30))) == {"asp"}
    narrow = learned(best=3)
    low = (*narrow.conditions.low[:5], 0.0, *narrow.conditions.low[6:])
    high = (*narrow.conditions.high[:5], 0.3, *narrow.conditions.high[6:])
    grown: Learned = replace(narrow, conditions=replace(narrow.conditions, low=low, high=high))
    seen = policies(RLP(written(tmp_path, grown, "narrow.json"), probe=0), reports(200))
    assert seen[8] == "k-group:2"
    assert set(seen[-100:]) == {"asp"}


def test_a_policy_that_does_worse_is_replaced(tmp_path: Path) -> None:
    """The loss falls twice as fast whenever the fallback is in charge."""
    policy = RLP(written(tmp_path, learned(best=3, window=4)), probe=3)
    state, _ = policy.decide(policy.init(Cluster(2)), Joined((0, 1), 0.0))
    level, seen = 1000.0, []
    for at in range(400):
        chosen = state.charge.policy.spec
        level *= 1 - (0.02 if chosen == "asp" else 0.01)
        state, _ = policy.decide(state, Report(at % 2, 1 + at // 2, 1.0 + at, step_s=2.0, loss=level))
        seen.append(chosen)
    assert "k-group:2" in seen[:100]
    assert set(seen[-100:]) == {"asp"}


def test_nobody_while_everyone_is_idle_means_all(tmp_path: Path) -> None:
    """The fallback hands over at the first report, which lets its worker go on."""
    policy = RLP(written(tmp_path, learned("paper", best=0)))
    state, _ = policy.decide(policy.init(Cluster(2)), Joined((0, 1), 0.0))
    made: list[Decisions] = []
    for report in reports(3):
        state, decisions = policy.decide(state, report)
        made.append(decisions)
    assert made == [(Sync((0,)), Proceed((0,))), (Sync((1,)),), (Sync((0,)), Proceed((0, 1)))]


def test_a_worker_that_leaves_is_not_waited_for(tmp_path: Path) -> None:
    policy = RLP(written(tmp_path, learned("paper", best=0)))
    state, _ = policy.decide(policy.init(Cluster(2)), Joined((0, 1), 0.0))
    for report in reports(2):
        state, _ = policy.decide(state, report)
    assert policy.decide(state, Left(0, 3.0, 1))[1] == (Proceed((1,)),)


def test_the_loss_is_that_after_the_update(tmp_path: Path) -> None:
    """A gradient is applied first; whoever goes on is named once the loss is known."""
    policy = RLP(written(tmp_path, learned("paper", best=2)), loss="probe")
    state, _ = policy.decide(policy.init(Cluster(2)), Joined((0, 1), 0.0))
    made = []
    for event in (
        Report(0, 1, 1.0, loss=9.0),
        LossMeasured(1.0, 2.0),
        Report(1, 1, 2.0, staleness=3),
        LossMeasured(2.0, 1.5),
    ):
        state, decisions = policy.decide(state, event)
        made.append(decisions)
    assert made == [(Sync((0,)), MeasureLoss(1.0)), (Proceed((0,)),), (Sync((1,)), MeasureLoss(2.0)), (Proceed((1,)),)]
    assert state.signals.history[:2] == ((0.02, 2.0, -5.0, 0.3), (0.01, 2.0, 0.0, 0.0))


def test_who_leaves_before_its_loss_is_known_is_forgotten(tmp_path: Path) -> None:
    policy = RLP(written(tmp_path, learned("paper", best=2)), loss="probe")
    state, _ = policy.decide(policy.init(Cluster(2)), Joined((0, 1), 0.0))
    for event in (Report(0, 1, 1.0), Report(1, 1, 1.0), Left(0, 1.0, 1)):
        state, _ = policy.decide(state, event)
    state, decisions = policy.decide(state, LossMeasured(1.0, 2.0))
    assert decisions == (Proceed((1,)),)
    assert policy.decide(state, LossMeasured(1.0, 2.0))[1] == ()


def test_the_loss_is_what_the_file_was_trained_with(tmp_path: Path) -> None:
    file = written(tmp_path, replace(learned("paper"), loss="probe"))
    assert RLP(file).traits.needs == {"probe_loss"}
    assert RLP(file, loss="running").traits.needs == {"loss"}
    with pytest.raises(SpecError, match="loss must be running or probe but got 'mean'"):
        RLP(written(tmp_path, replace(learned("paper"), loss="mean")))


def test_the_policy_that_ships() -> None:
    policy = RLP()
    assert policy.spec == "rlp"
    assert policy.fixed.spec == "asp"
    assert dict(policy.learned.training)["command"].startswith("polyrhythm learn ")
    assert policy.view is VIEWS["phase"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("rlp:none.json", "cannot be read: No such file"),
        ("rlp:only=h/3", "only must be an action of the view 'phase' but got 'h/3': did you mean"),
        ("rlp:probe=1", "probe must be 0 or at least 2 but got 1"),
        ("rlp:z=0", "z must be above 0"),
        ("rlp:fallback=(local:2)", "fallback must exchange gradients"),
        ("rlp:loss=last", "loss must be running or probe but got 'last'"),
        ("rlp:loss=probe,fallback=(bsp)", "loss=probe needs a fallback that applies each gradient when it arrives"),
    ],
)
def test_refused(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        parse_policy(spec)


def test_a_file_of_another_view_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="does not fit its view"):
        RLP(written(tmp_path, replace(learned("phase"), view="paper")))
    with pytest.raises(SpecError, match="unknown view 'phases': did you mean phase"):
        RLP(written(tmp_path, replace(learned("phase"), view="phases")))
