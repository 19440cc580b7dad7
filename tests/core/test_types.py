import pickle

import pytest

from polyrhythm.core import Alarm, Cancel, Cluster, Joined, Left, Proceed, Report, Settings, Sync, Wake
from polyrhythm.errors import PolyrhythmError

VALUES = [
    Cluster(workers=2),
    Joined((0, 1), 0.0),
    Report(0, 1, 1.0),
    Left(0, 1.0, 1),
    Alarm(1.0),
    Sync((0,)),
    Proceed((0,), settings=Settings(lr_scale=0.5)),
    Cancel((0,)),
    Wake(1.0),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_values_are_frozen_comparable_hashable_and_picklable(value: object) -> None:
    copy = pickle.loads(pickle.dumps(value))  # noqa: S301
    assert copy == value
    assert hash(copy) == hash(value)
    with pytest.raises((AttributeError, TypeError)):
        value.anything = 1  # type: ignore[attr-defined]
    with pytest.raises(AttributeError):
        setattr(value, type(value).__match_args__[0], 1)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["workers", "batch_size", "workload_samples"])
def test_cluster_of_nothing(name: str) -> None:
    with pytest.raises(PolyrhythmError, match=f"{name} must be at least 1 but got 0"):
        Cluster(**{"workers": 1, name: 0})
