"""What each kind of phase takes from its workers, and what it declares."""

import pytest

from polyrhythm.core import Cluster
from polyrhythm.errors import PolyrhythmError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.coordinator.phases.phase_kind import PhaseKind
from polyrhythm.runtime.coordinator.stages import kind_of
from polyrhythm.runtime.wire.protocol import LocalStepDone, Pushed, Stepped, TookPart
from tests.runtime.fake_job import FakeJob


def phase(policy: str) -> PhaseKind:
    job = FakeJob("asp", workers=2, samples=64, batch_size=4, epochs=1, seed=0).coordinator.job
    return kind_of(parse_policy(policy))(3, job, parse_policy(policy), Cluster(2))


@pytest.mark.parametrize("policy", ["asp", "esync", "bsp", "selsync:0.1"])
def test_a_kind_refuses_what_its_workers_cannot_send(policy: str) -> None:
    kind = phase(policy)
    if not kind.together:
        with pytest.raises(PolyrhythmError, match="rank 1 sent Stepped in phase 3"):
            kind.stepped(1, Stepped(0, 4, 0.1))
    if not kind.on_workers or kind.together:
        with pytest.raises(PolyrhythmError, match="rank 1 sent TookPart in phase 3"):
            kind.merged(1, TookPart(1))
        with pytest.raises(PolyrhythmError, match="rank 1 sent LocalStepDone in phase 3"):
            kind.moved(1, LocalStepDone(0, 4, 0.1, 0.0))
    if kind.together:
        with pytest.raises(PolyrhythmError, match="rank 1 sent Pushed in phase 3"):
            kind.pushed(1, Pushed(0, 4, 0.1, 0.0))


def test_a_phase_that_is_none_takes_no_step() -> None:
    with pytest.raises(PolyrhythmError, match="rank 0 sent Pushed in phase 0"):
        PhaseKind().pushed(0, Pushed(0, 4, 0.1, 0.0))


@pytest.mark.parametrize(
    ("policy", "on_workers", "admits", "together"),
    [
        ("asp", False, True, False),
        ("esync", True, False, False),
        ("bsp", True, False, True),
        ("selsync:0.1", True, False, True),
    ],
)
def test_a_kind_declares_what_it_is(policy: str, on_workers: bool, admits: bool, together: bool) -> None:
    kind = phase(policy)
    assert (kind.on_workers, kind.admits, kind.together) == (on_workers, admits, together)
