import pickle
from typing import Any

import pytest

from polyrhythm.core import Alarm, Cancel, Cluster, Joined, Left, Proceed, Report, Settings, Sync, Wake
from polyrhythm.errors import PolyrhythmError, UsageError

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
    with pytest.raises(PolyrhythmError, match=f"{name} must be a whole number of at least 1 but got 0"):
        Cluster(**{"workers": 1, name: 0})


@pytest.mark.parametrize("value", ["x", 1.5, None, float("nan")])
def test_a_cluster_is_counted_in_whole_numbers(value: Any) -> None:
    for name in ("workers", "processed_samples"):
        with pytest.raises(UsageError, match=f"^{name} must be a whole number of at least [01] but got {value!r}$"):
            Cluster(**{"workers": 1, name: value})
    with pytest.raises(UsageError, match=r"^processed_samples must be a whole number of at least 0 but got -1$"):
        Cluster(1, processed_samples=-1)
