import pytest
import torch

from polyrhythm.runtime.worker.losses.finite import FiniteWatch


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_a_loss_that_is_not_finite_is_seen_in_its_step(value: str) -> None:
    watch = FiniteWatch()
    assert watch.see([torch.tensor(1.0), torch.tensor(3e38)], 4) is None
    assert watch.see([], 5) is None
    found = watch.see([torch.tensor(1.0), torch.tensor(float(value))], 6)
    assert found is not None
    assert (found[0], str(found[1])) == (6, value)


def test_a_loss_that_was_read_already_is_looked_at_as_well() -> None:
    watch = FiniteWatch()
    assert watch.see([2.0], 1) is None
    assert watch.latest == 2.0
    assert watch.see([1.0, float("inf"), 3.0], 2) == (2, float("inf"))
