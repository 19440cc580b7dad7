from itertools import pairwise

import pytest

from polyrhythm.core import Alarm, Bounds, Cluster, Joined, Left, Proceed, Report, Sync
from polyrhythm.errors import SpecError
from polyrhythm.policies import LocalSGD
from polyrhythm.testing import ClusterScript, ScriptPlayer
from tests.policies.conftest import Drive

AVERAGE = (Sync((0, 1), "parameters"), Proceed((0, 1), "replicas"))


def test_average_every_h_steps(drive: Drive) -> None:
    events = [Report(0, 1, 1.0), Report(0, 2, 2.0), Report(1, 1, 3.0), Alarm(3.5), Report(1, 2, 4.0), Report(0, 3, 5.0)]
    assert drive(LocalSGD(2), 2, *events) == [
        (Proceed((0,), "replicas"),),
        (),
        (Proceed((1,), "replicas"),),
        (),
        AVERAGE,
        (Proceed((0,), "replicas"),),
    ]


def test_newcomer_completes_the_round(drive: Drive) -> None:
    events = [Report(0, 1, 1.0), Joined((1,), 1.5, 1), Report(0, 2, 2.0), Report(1, 2, 2.5)]
    assert drive(LocalSGD(2), 1, *events)[1:] == [(Proceed((1,), "replicas"),), (), AVERAGE]


def test_newcomers_after_everyone_left_start_a_round(drive: Drive) -> None:
    events = [Report(0, 1, 1.0), Left(0, 2.0, 1), Joined((0,), 3.0, 1), Report(0, 2, 4.0), Report(0, 3, 5.0)]
    average = (Sync((0,), "parameters"), Proceed((0,), "replicas"))
    assert drive(LocalSGD(2), 1, *events)[-2:] == [(Proceed((0,), "replicas"),), average]


def test_death_of_the_last_of_a_round_averages(drive: Drive) -> None:
    events = [Report(0, 1, 1.0), Report(1, 1, 1.0), Left(2, 2.0, 0)]
    assert drive(LocalSGD(1), 3, *events)[-1] == AVERAGE


def test_bounds() -> None:
    assert LocalSGD(4).bounds(Cluster(workers=2)) == Bounds(lead=4, staleness=0)


@pytest.mark.parametrize(
    ("growth", "rounds"), [("linear", [1, 2, 3, 5, 8]), ("geometric", [1, 1, 1, 1, 2, 2, 2, 3, 4, 7])]
)
def test_rounds_grow_with_what_is_processed(growth: str, rounds: list[int]) -> None:
    """One worker, 100 samples, 4 a step: each round's length is decided when it starts."""
    policy = LocalSGD(h=1, last=16, growth=growth)
    script = ClusterScript(workers=1, total_samples=100, dataset_samples=100, batch_size=4)
    syncs = [event.clock for event, decisions in ScriptPlayer(policy, script).play().entries if len(decisions) == 2]  # type: ignore[union-attr]
    assert [later - earlier for earlier, later in pairwise([0, *syncs])][: len(rounds)] == rounds


def test_impossible_growth() -> None:
    with pytest.raises(SpecError, match="last must be a whole number of at least 1 but got 0"):
        LocalSGD(last=0)
    with pytest.raises(SpecError, match="growth must be linear or geometric but got 'fast'"):
        LocalSGD(growth="fast")
