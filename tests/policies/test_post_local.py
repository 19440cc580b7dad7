import pytest

from polyrhythm.core import Cluster, Exchange, Joined, Left, Proceed, Report, Sync
from polyrhythm.errors import SpecError
from polyrhythm.policies import PostLocalSGD
from polyrhythm.testing import ClusterScript, ScriptPlayer


def exchanges(policy: PostLocalSGD, script: ClusterScript) -> list[str]:
    """What each update combined."""
    decisions = [d for _, decided in ScriptPlayer(policy, script).play().entries for d in decided]
    return [decision.what for decision in decisions if isinstance(decision, Sync)]


@pytest.mark.parametrize(("at", "rounds"), [(0.25, 3), (0.3, 3), (0.34, 4), (0.5, 5), (1.0, 10)])
def test_switch_at_the_first_barrier_beyond_the_share(at: float, rounds: int) -> None:
    """20 samples, 2 a round."""
    assert exchanges(PostLocalSGD(h=1, at=at), ClusterScript()) == ["gradients"] * rounds + ["parameters"] * (
        10 - rounds
    )


def test_a_dropped_gradient_is_not_processed() -> None:
    policy = PostLocalSGD(h=2, at=0.5)
    state, _ = policy.decide(policy.init(Cluster(2, workload_samples=20)), Joined((0, 1), 0.0))
    for event in (Report(0, 1, 1.0, samples=9), Left(0, 2.0, 1)):
        state, _ = policy.decide(state, event)
    state, decisions = policy.decide(state, Report(1, 1, 3.0, samples=9))
    assert decisions == (Sync((1,)), Proceed((1,)))
    assert policy.decide(state, Report(1, 2, 4.0, samples=1))[1] == (Sync((1,)), Proceed((1,), "replicas"))


def test_a_death_can_be_the_moment_of_the_switch() -> None:
    policy = PostLocalSGD(h=2, at=0.5)
    state, _ = policy.decide(policy.init(Cluster(2, workload_samples=20)), Joined((0, 1), 0.0))
    state, _ = policy.decide(state, Report(0, 1, 1.0, samples=10))
    state, decisions = policy.decide(state, Left(1, 2.0, 0))
    assert decisions == (Sync((0,)), Proceed((0,), "replicas"))
    assert policy.decide(state, Report(0, 2, 3.0))[1] == (Proceed((0,), "replicas"),)


@pytest.mark.parametrize(("processed", "start"), [(0, "gradients"), (9, "gradients"), (10, "replicas")])
def test_what_was_processed_before_the_start_counts(processed: int, start: Exchange) -> None:
    cluster = Cluster(2, workload_samples=20, processed_samples=processed)
    policy = PostLocalSGD(h=2, at=0.5)
    assert policy.decide(policy.init(cluster), Joined((0, 1), 0.0))[1] == (Proceed((0, 1), start),)


@pytest.mark.parametrize("at", [-0.1, 1.1, float("nan")])
def test_impossible_share(at: float) -> None:
    with pytest.raises(SpecError, match="at must be a share from 0 to 1 but got"):
        PostLocalSGD(at=at)


def test_impossible_h() -> None:
    with pytest.raises(SpecError, match="h must be a whole number of at least 1 but got 0"):
        PostLocalSGD(h=0)
