import pytest

from polyrhythm.core import Alarm, Bounds, Cluster, Left, Outer, Proceed, Report, Sync, Wake
from polyrhythm.errors import SpecError
from polyrhythm.policies import DiLoCo, parse_policy
from polyrhythm.testing import ClusterScript, ScriptPlayer
from tests.policies.conftest import Drive


def syncs(policy: DiLoCo, steps: int) -> list[tuple[int, Sync]]:
    """The clock at which each exchange of two workers starts."""
    entries = (
        ScriptPlayer(policy, ClusterScript(workers=2, total_samples=2 * steps, dataset_samples=2 * steps))
        .play()
        .entries
    )
    return [(event.clock, d) for event, decided in entries for d in decided if isinstance(d, Sync)]  # type: ignore[union-attr]


def test_deltas_go_to_the_outer_optimizer_every_h_steps() -> None:
    assert syncs(DiLoCo(h=3), 7) == [
        (3, Sync((0, 1), "deltas", outer=Outer(0.7, 0.9, nesterov=True))),
        (6, Sync((0, 1), "deltas", outer=Outer(0.7, 0.9, nesterov=True))),
    ]


def test_fragments_take_turns_evenly() -> None:
    decided = syncs(DiLoCo(h=5, fragments=3, overlap=2), 10)
    assert [(clock, sync.fragment, sync.delay) for clock, sync in decided] == [
        (1, (0, 3), 2),
        (3, (1, 3), 2),
        (5, (2, 3), 2),
        (6, (0, 3), 2),
        (8, (1, 3), 2),
        (10, (2, 3), 2),
    ]


def test_without_momentum_nesterov_means_nothing() -> None:
    assert syncs(DiLoCo(h=1, momentum=0), 1)[0][1].outer == Outer(0.7)


def test_bounds() -> None:
    assert DiLoCo(h=5, fragments=3).bounds(Cluster(2)) == Bounds(lead=2, staleness=0)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("diloco:0", "h must be a whole number of at least 1"),
        ("diloco:lr=0", "lr must be positive and finite but got 0"),
        ("diloco:momentum=1", r"momentum must be in \[0, 1\) but got 1"),
        ("diloco:4,overlap=4", "overlap must be less than h=4 but got 4"),
        ("diloco:4,fragments=5", "fragments must be at most h=4 but got 5"),
    ],
)
def test_impossible_parameters(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_policy(spec)


def late(script: ClusterScript, policy: str) -> list[tuple[float, Sync]]:
    entries = ScriptPlayer(parse_policy(policy), script).play().entries
    return [(event.time_s, d) for event, decided in entries for d in decided if isinstance(d, Sync)]


ONE_LATE = ClusterScript(3, ((1.0,), (1.0,), (5.2,)), total_samples=60, dataset_samples=60)


def test_a_quorum_goes_on_and_who_is_late_comes_with_the_next() -> None:
    exchanges = late(ONE_LATE, "diloco:2,quorum=2,grace=0")
    assert [time_s for time_s, _ in exchanges[:5]] == [2.0, 4.0, 6.0, 8.0, 10.0]
    assert [sync.workers for _, sync in exchanges[:5]] == [(0, 1), (0, 1), (0, 1), (0, 1), (0, 1)]
    assert exchanges[5][1].workers == (0, 2)


def test_the_others_have_their_grace() -> None:
    script = ClusterScript(3, ((1.0,), (1.0,), (1.2,)), total_samples=30, dataset_samples=30)
    assert {sync.workers for _, sync in late(script, "diloco:2,quorum=2,grace=0.3")[:4]} == {(0, 1, 2)}
    assert late(script, "diloco:2,quorum=2,grace=0.1")[0] == (
        2.2,
        Sync((0, 1), "deltas", outer=Outer(0.7, 0.9, nesterov=True)),
    )


def test_contributions_count_by_their_samples() -> None:
    script = ClusterScript(2, ((1.0,), (1.0,)), total_samples=7, dataset_samples=7, batch_size=2)
    assert late(script, "diloco:2,quorum=1,grace=0")[-1][1].weights in (None, (4.0, 3.0), (3.0, 4.0))


def test_a_quorum_of_all_has_the_rounds_of_diloco() -> None:
    script = ClusterScript(3, ((1.0,), (2.0,), (1.5,)), total_samples=36, dataset_samples=36)
    assert late(script, "diloco:3,quorum=3") == late(script, "diloco:3")


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("diloco:4,quorum=-1", "quorum must be a whole number of at least 0"),
        ("diloco:4,quorum=2,grace=-1", "grace must be at least 0"),
        ("diloco:4,quorum=2,overlap=1", "leave out overlap=1"),
    ],
)
def test_a_quorum_that_cannot_be_is_one_line(spec: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        parse_policy(spec)


def test_time_for_the_others_begins_anew_when_a_quorum_has_gone(drive: Drive) -> None:
    """Worker 1 dies while it waits; when there is a quorum again, the last one gets its two seconds."""
    policy = DiLoCo(h=1, quorum=2, grace=0.5)
    before = [Report(0, 1, 2.0), Report(1, 1, 2.0), Left(1, 2.5, 1), Alarm(3.0)]
    decided = drive(policy, 4, *before, Report(2, 1, 4.0), Alarm(6.0))
    assert decided == [(), (Wake(3.0),), (), (), (Wake(6.0),), decided[-1]]
    assert [type(decision) for decision in decided[-1]] == [Sync, Proceed]
