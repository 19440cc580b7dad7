import pytest

from polyrhythm.core import Bounds, Cluster, Sync
from polyrhythm.errors import PolyrhythmError, SpecError
from polyrhythm.policies import FedAvg
from polyrhythm.policies.fedavg import chosen
from polyrhythm.testing import ClusterScript, ScriptPlayer


def syncs(policy: FedAvg, script: ClusterScript) -> list[tuple[int, Sync]]:
    """The clock at which each average is taken."""
    entries = ScriptPlayer(policy, script).play().entries
    return [(event.clock, d) for event, decided in entries for d in decided if isinstance(d, Sync)]  # type: ignore[union-attr]


def test_a_round_is_a_share_of_an_epoch_of_all_workers() -> None:
    script = ClusterScript(workers=4, total_samples=480, dataset_samples=160, batch_size=2)
    assert [clock for clock, _ in syncs(FedAvg(e=0.25), script)] == [5 * n for n in range(1, 13)]
    assert syncs(FedAvg(e=0.25), script)[0][1] == Sync((0, 1, 2, 3), "parameters")


def test_a_share_of_the_workers_contributes_and_all_adopt() -> None:
    script = ClusterScript(workers=4, total_samples=160, dataset_samples=160, batch_size=2)
    averages = [sync for _, sync in syncs(FedAvg(c=0.5, e=0.25), script)]
    assert {len(sync.workers) for sync in averages} == {2}
    assert {sync.adopters for sync in averages} == {(0, 1, 2, 3)}
    assert len({sync.workers for sync in averages}) > 1


def test_what_others_did_meanwhile_is_dropped_and_counted() -> None:
    stage = ScriptPlayer(FedAvg(c=0.5, e=0.5), ClusterScript(workers=2, total_samples=40, dataset_samples=40)).play()
    assert stage.ledger.dropped == {"replaced": 20}


def test_the_choice_depends_on_seed_and_round_alone() -> None:
    everyone = tuple(range(20))
    first = chosen(everyone, 0.3, seed=1, number=5)
    assert first == chosen(everyone, 0.3, seed=1, number=5)
    assert len(first) == 6
    assert first not in (chosen(everyone, 0.3, seed=2, number=5), chosen(everyone, 0.3, seed=1, number=6))
    assert (chosen(everyone, 0.01, 0, 0), chosen(everyone, 1.0, 0, 0))[1] == everyone
    assert len(chosen(everyone, 0.01, 0, 0)) == 1


def test_a_job_that_goes_on_draws_as_if_it_had_not_stopped() -> None:
    """After a switch or a death a new phase begins; it drew the first rounds' workers once more."""
    policy = FedAvg(c=0.5, e=0.25)
    whole = syncs(policy, ClusterScript(workers=8, total_samples=1600, dataset_samples=320, batch_size=2))
    gone_on = policy.init(Cluster(8, 2, 1600, processed_samples=400, dataset_samples=320))
    assert [policy.exchange(gone_on, tuple(range(8)))] == [whole[5][1]]
    assert whole[5][1] != whole[0][1]


def test_rounds_over_count_also_where_an_epochs_last_step_is_smaller() -> None:
    """Epochs of 10 samples in rounds of 2 steps of 6 and 4; the first rounds' workers were drawn once more."""
    clusters = [Cluster(2, 3, processed_samples=10 * epoch, dataset_samples=10) for epoch in range(10)]
    assert [FedAvg(c=0.5, e=1.0).init(cluster).number for cluster in clusters] == [*range(10)]


def test_everybody_is_chosen_about_equally_often() -> None:
    counts = [sum(worker in chosen(range(8), 0.25, 0, number) for number in range(2_000)) for worker in range(8)]
    assert all(count == pytest.approx(500, rel=0.15) for count in counts)


def test_the_size_of_an_epoch_must_be_known() -> None:
    with pytest.raises(PolyrhythmError, match="how many samples an epoch has"):
        FedAvg().init(Cluster(2))
    assert FedAvg().bounds(Cluster(2)) == Bounds(staleness=0)
    assert FedAvg(e=0.5).bounds(Cluster(2, 4, dataset_samples=80)) == Bounds(lead=10, staleness=0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"c": 0.0}, "c must be a share above 0"),
        ({"c": 1.5}, "c must be a share"),
        ({"e": 0.0}, "e must be a positive share"),
    ],
)
def test_impossible_shares(fields: dict[str, float], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        FedAvg(**fields)  # type: ignore[arg-type]
