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
