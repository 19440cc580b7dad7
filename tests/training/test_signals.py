import pytest
import torch

from polyrhythm.training.signals import sizes_of, squared_norm


def test_the_norm_is_that_of_one_long_vector() -> None:
    gradients = [torch.randn(5, 3), torch.randn(7), torch.randn(())]
    expected = torch.cat([gradient.reshape(-1) for gradient in gradients]).square().sum().item()
    assert squared_norm(gradients) == pytest.approx(expected, rel=1e-5)


def test_nothing_has_no_norm() -> None:
    assert squared_norm([]) == 0.0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_small_change_of_many_numbers_changes_their_sizes(dtype: torch.dtype) -> None:
    numbers = torch.randn(256, 256, generator=torch.Generator().manual_seed(0)).to(dtype)
    others = numbers.clamp(-3.0, 3.0)
    assert 0 < (numbers != others).sum() < 300
    assert not torch.equal(sizes_of([numbers]), sizes_of([others]))
    assert torch.equal(sizes_of([numbers]), sizes_of([numbers.clone()]))
