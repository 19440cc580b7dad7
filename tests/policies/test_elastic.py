"""Elastic: who is left out, what becomes of what it computes, and when it comes back."""

from dataclasses import replace

import pytest

from polyrhythm.core import Cancel, Cluster, Joined, Left, Proceed, Report, Sync
from polyrhythm.errors import SpecError
from polyrhythm.policies import parse_policy
from polyrhythm.testing import ClusterScript, ScriptPlayer

SLOW_FOR_A_WHILE = ClusterScript(workers=4, durations=((1.0,), (1.0,), (1.0,), (*[1.0] * 6, *[3.0] * 10, *[1.0] * 80)))
LONG = replace(SLOW_FOR_A_WHILE, total_samples=240, dataset_samples=240)


def play(spec: str, script: ClusterScript = LONG) -> ScriptPlayer:
    return ScriptPlayer(parse_policy(spec), script).play()


def barriers(stage: ScriptPlayer) -> list[tuple[int, ...]]:
    """Whose gradients each update takes."""
    return [d.workers for _, decisions in stage.entries for d in decisions if isinstance(d, Sync)]


def test_a_straggler_is_left_out_and_comes_back() -> None:
    stage = play("elastic:(bsp),window=2,probes=drop")
    members = [len(workers) for workers in barriers(stage)]
    assert members[:7] == [4] * 7, "it has completed one slow window and is in its second"
    assert 3 in members
    assert members[members.index(3) :].count(4) > 5, "it is back"
    assert stage.ledger.dropped["cancelled"] > 0


def test_its_gradients_are_used_meanwhile_and_nobody_waits_for_them() -> None:
    dropped, applied = play("elastic:(bsp),window=2,probes=drop"), play("elastic:(bsp),window=2")
    assert applied.ledger.dropped.total() == 0
    assert applied.now_s < dropped.now_s < play("bsp").now_s
    stale = [event.staleness for event, _ in applied.entries if isinstance(event, Report)]
    assert max(stale) == 2, "a step of three rounds"


def test_by_the_papers_rule_a_straggler_is_out_until_the_share_is_served() -> None:
    """Meanwhile it makes no step, and with the last part it is back."""
    stage = play("elastic:(switch:bsp@0.6,asp),window=2,back=served")
    members = barriers(stage)
    served = next(at for at, workers in enumerate(members) if len(workers) == 1)
    out = members.index((0, 1, 2))
    assert set(members[out:served]) == {(0, 1, 2)}
    assert sum(map(len, members[: served - 1])) < 0.6 * LONG.total_samples <= sum(map(len, members[:served]))
    assert set(members[served:]) == {(0,), (1,), (2,), (3,)}
    assert stage.ledger.dropped.total() == 0


def test_the_end_of_an_epoch_does_not_bring_it_back_by_the_papers_rule() -> None:
    policy = parse_policy("elastic:(switch:bsp@0.9,asp),window=1,patience=1,back=served")
    state = policy.init(Cluster(3, workload_samples=1000))
    state, _ = policy.decide(state, Joined((0, 1, 2), 0.0))
    for worker, step_s in ((0, 1.0), (1, 1.0), (2, 3.0)):
        state, decisions = policy.decide(state, Report(worker, 1, 3.0, step_s=step_s))
    assert decisions == (Sync((0, 1, 2)), Proceed((0, 1)))
    state, decisions = policy.decide(state, Left(0, 7.0, 1, "finished"))
    assert decisions[-1] == Proceed((2,)), "it takes part in the end of the epoch"
    for worker in (1, 2):
        state, _ = policy.decide(state, Left(worker, 7.0, 1, "finished"))
    state, decisions = policy.decide(state, Joined((0, 1, 2), 8.0, 1))
    assert decisions == (Proceed((0, 1)),)
    state, _ = policy.decide(state, Left(0, 9.0, 1))
    state, decisions = policy.decide(state, Left(1, 9.0, 1))
    assert decisions == (Proceed((2,)),), "it is the cluster now"


def test_nobody_is_left_out_of_the_last_part() -> None:
    stage = play("elastic:(switch:bsp@0.4,asp),window=1,patience=1")
    switched = next(k for k, workers in enumerate(barriers(stage)) if len(workers) == 1 and workers != (3,))
    assert all(len(workers) == 1 for workers in barriers(stage)[switched:])
    assert set(barriers(stage)[switched:]) == {(0,), (1,), (2,), (3,)}


def test_at_least_half_stay() -> None:
    durations = ((1.0,), (1.0, 1.0, *[2.0] * 30), (1.0, 1.0, *[4.0] * 30), (1.0, 1.0, *[8.0] * 30))
    stage = play("elastic:(bsp),window=1,patience=1,probes=drop", replace(LONG, durations=durations))
    assert min(len(workers) for workers in barriers(stage)) >= 2


def test_who_is_left_out_takes_over_when_all_others_are_gone() -> None:
    script = replace(LONG, durations=((1.0,), (1.0, 1.0, 1.0, *[9.0] * 40)), workers=2)
    stage = ScriptPlayer(parse_policy("elastic:(bsp),window=1,patience=1"), script)
    state = stage.policy.init(stage.cluster)
    stage.play()
    out = next(k for k, e in enumerate(stage.entries) if e.decisions and e.decisions[-1] == Proceed((1,)))
    for event, _ in stage.entries[: out + 1]:
        state, _ = stage.policy.decide(state, event)
    _, decisions = stage.policy.decide(state, Left(0, 99.0, 9))
    assert decisions == (), "its step is under way"
    assert Cancel((1,)) not in decisions


def test_unknown_words_are_refused() -> None:
    with pytest.raises(SpecError, match="probes must be apply or drop but got 'keep'"):
        parse_policy("elastic:(bsp),probes=keep")
    with pytest.raises(SpecError, match="detector must be robust or sigma but got 'mean'"):
        parse_policy("elastic:(bsp),detector=mean")
    with pytest.raises(SpecError, match="back must be recovered or served but got 'later'"):
        parse_policy("elastic:(bsp),back=later")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("elastic:(switch:bsp@0.5,asp),probes=drop,back=served", "leave out probes, or give back=recovered"),
        (
            "elastic:(bsp),back=served",
            r"has one part; give a switch such as \(switch:bsp@0.25,asp\), or back=recovered",
        ),
        (
            "elastic:(switch:(local:2)@0.5,asp),back=served",
            "give back=recovered, or parts on gradients before the last",
        ),
        ("elastic:(esync:blocking=false)", "elastic needs workers that wait for an answer to their reports"),
    ],
)
def test_what_cannot_be_combined_is_refused_with_what_can(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_policy(spec)
