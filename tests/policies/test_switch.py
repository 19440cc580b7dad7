"""Switch: specs, the moment of the switch, what becomes of what is in flight, and settings."""

import pytest

from polyrhythm.core import Cancel, Cluster, Entry, Event, Joined, Left, Proceed, Report, Settings, Sync, all_stages
from polyrhythm.errors import SpecError
from polyrhythm.policies import parse_policy
from polyrhythm.testing import ClusterScript, ScriptPlayer

UNEVEN = ClusterScript(workers=3, durations=((1.0,), (1.0,), (2.5,)), total_samples=60, dataset_samples=60)


def play(spec: str, script: ClusterScript = UNEVEN) -> ScriptPlayer:
    return ScriptPlayer(parse_policy(spec), script).play()


def syncs(entries: list[Entry]) -> list[tuple[int, ...]]:
    return [d.workers for _, decisions in entries for d in decisions if isinstance(d, Sync)]


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("switch:bsp,asp", "part 'bsp' of a switch needs a share, as in 'bsp@0.5'"),
        ("switch:bsp@x,asp", "the share of 'bsp' must be a number but got 'x'"),
        ("switch:bsp@0.7,asp@0.5", r"in \[0, 1\] with a sum of at most 1 but got \[0.7, 0.5\]"),
        ("switch:bsp@0.5,asp@0.2", "add up to 0.7; leave that of the last part out"),
        ("switch:bsp@0.5@0.5,asp", r"^policy 'switch:.*': 'bsp@0.5@0.5' has several shares; give one"),
        ("switch:bsp@0.5,apsp", "unknown policy 'apsp': did you mean asp"),
        ("switch:(esync:blocking=False)@0.5,asp", "must let workers wait for its answers"),
        ("switch:bsp@0.5,asp,late=never", "late must be finish or drop but got 'never'"),
        ("switch:bsp@0.5,asp,momentum=2", r"momentum must be a number in \[0, 1\) or one of same, zero"),
        ("switch:bsp@0.5,asp,lr=0", "lr must be a positive factor but got 0"),
        ("switch:bsp@0.5,asp,batch=-1", "batch must be a whole number of at least 0 but got -1"),
        ("tuned:asp,full=1", r"full must be in \[0, 1\) but got 1"),
    ],
)
def test_what_cannot_be_is_refused(spec: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        parse_policy(spec)


@pytest.mark.parametrize(
    "spec", ["switch:bsp@0.5,asp", "switch:(ssp:3)@0.25,(local:2)@0.25,asp,momentum=1/n", "tuned:(ssp:3),lr=0.5"]
)
def test_a_spec_is_read_back_as_it_is_written(spec: str) -> None:
    assert parse_policy(spec).spec == spec
    assert parse_policy(parse_policy(spec).spec) == parse_policy(spec)


def test_bsp_ends_at_the_barrier_that_serves_its_share() -> None:
    taken = syncs(play("switch:bsp@0.25,asp").entries)
    assert taken[:5] == [(0, 1, 2)] * 5, "15 samples"
    assert {len(workers) for workers in taken[5:]} == {1}


def test_steps_in_flight_are_applied_as_they_arrive() -> None:
    stage = play("switch:asp@0.5,bsp")
    assert stage.ledger.dropped.total() == 0
    first = syncs(stage.entries).index((0, 1, 2))
    assert 30 <= first <= 32, "what was in flight counts too"


def test_or_they_are_dropped_and_processed_again() -> None:
    stage = play("switch:asp@0.5,bsp,late=drop")
    cancelled = [d.workers for _, decisions in stage.entries for d in decisions if isinstance(d, Cancel)]
    assert len(cancelled) == 1
    assert stage.ledger.dropped["cancelled"] == len(cancelled[0])


def test_replicas_are_averaged_before_the_next_rule_reads_the_parameters() -> None:
    stage = play("switch:(local:4)@0.3,asp")
    entries = stage.entries
    started = next(k for k, (_, decisions) in enumerate(entries) if Proceed((0, 1, 2)) in decisions and k > 0)
    (average,) = [d for d in entries[started].decisions if isinstance(d, Sync)]
    assert (average.what, average.workers) == ("parameters", (0, 1, 2))


def test_the_next_rule_sees_everyone_at_one_clock() -> None:
    """SSP would park whoever is ahead; after ASP it must not take clocks for a lead."""
    stage = play("switch:asp@0.5,(ssp:0)")
    lead = [event.clock for event, _ in stage.entries if isinstance(event, Report)]
    assert max(lead) > 20
    assert stage.ledger.applied == 60


def test_stages_are_what_a_shell_may_run_one_by_one() -> None:
    stages = parse_policy("switch:bsp@0.25,asp,momentum=zero").stages(
        Cluster(4, workload_samples=100, processed_samples=30)
    )
    assert [(stage.policy.spec, stage.end_samples) for stage in stages] == [
        ("bsp", 25.0),
        ("tuned:(asp),momentum=zero", float("inf")),
    ]


def settings(spec: str, epochs: int = 3) -> list[Settings | None]:
    """Settings that each worker is given, in order, on two workers."""
    script = ClusterScript(workers=2, total_samples=epochs * 8, dataset_samples=8)
    entries = play(spec, script).entries
    return [d.settings for _, decisions in entries for d in decisions if isinstance(d, Proceed) and d.settings]


@pytest.mark.parametrize(
    ("momentum", "momenta"),
    [("zero", [0.0]), ("1/n", [0.5]), ("0.3", [0.3]), ("same", [None]), ("i/n", [0.0, 0.5, None])],
)
def test_momenta(momentum: str, momenta: list[float | None]) -> None:
    given = settings(f"tuned:bsp,lr=0.5,momentum={momentum}")
    assert [each.momentum for each in given if each] == momenta
    assert {each.lr_scale for each in given if each} == {0.5}


def test_a_ramp_that_doubles() -> None:
    momenta = [each.momentum for each in settings("tuned:bsp,momentum=2^i/n,full=0.9") if each]
    assert (momenta[0], {*momenta[1:]}) == (0.5, {None}), "2/2 is beyond its end"


def test_settings_from_the_first_switch_on() -> None:
    entries = play("switch:bsp@0.5,asp,batch=2,lr=0.5").entries
    given = {d.settings for _, decisions in entries for d in decisions if isinstance(d, Proceed)}
    assert given == {None, Settings(lr_scale=0.5, batch_size=2)}
    sizes = [event.samples for event, _ in entries if isinstance(event, Report)]
    assert sizes[:30] == [1] * 30
    assert set(sizes[30:]) == {2}


def test_a_newcomer_is_given_the_settings_too() -> None:
    policy = parse_policy("tuned:asp,momentum=zero")
    state, _ = policy.decide(policy.init(Cluster(2)), Joined((0,), 0.0))
    _, (go,) = policy.decide(state, Joined((1,), 5.0))
    assert go == Proceed((1,), settings=Settings(momentum=0.0))


def test_who_has_finished_its_epoch_counts_among_the_workers_of_the_next_part() -> None:
    """Worker 1 makes the last step of the epoch, and of the first part, when worker 0 has found none."""
    policy = parse_policy("switch:asp@0.5,bsp,momentum=1/n")
    state, _ = policy.decide(policy.init(Cluster(2, workload_samples=8)), Joined((0, 1), 0.0))
    events: list[Event] = [Report(0, clock, float(clock)) for clock in (1, 2, 3)]
    for event in (*events, Left(0, 3.0, 3, "finished")):
        state, _ = policy.decide(state, event)
    _, decisions = policy.decide(state, Report(1, 1, 4.0))
    assert decisions[-1] == Proceed((1,), settings=Settings(momentum=0.5))


@pytest.mark.parametrize(
    ("nested", "stages"),
    [
        ("switch:(switch:asp@0.3,(local:3))@0.6,bsp", "switch:asp@0.3,(local:3)@0.3,bsp"),
        ("switch:bsp@0.5,(switch:asp@0.3,(local:3)@0.4,bsp)", "switch:bsp@0.5,(local:3)@0.2,bsp"),
        ("switch:bsp@0.5,(switch:asp@0.3,(switch:asp@0.7,bsp))", "switch:bsp@0.5,asp@0.2,bsp"),
        ("switch:(switch:bsp@0.8,asp)@0.5,(local:3)", "switch:bsp@0.5,(local:3)"),
    ],
)
def test_a_sequence_within_a_sequence_is_its_stages(nested: str, stages: str) -> None:
    """Real workers run each in a placement of its own; the inner sequence had one for all, and failed."""
    cluster = Cluster(4, workload_samples=1000)
    found, expected = (all_stages(parse_policy(spec), cluster) for spec in (nested, stages))
    assert [(each.policy, round(each.end_samples, 6)) for each in found[:-1]] == [
        (each.policy, round(each.end_samples, 6)) for each in expected[:-1]
    ]
    assert found[-1] == expected[-1]
    assert all_stages(parse_policy("bsp"), cluster) == ()
