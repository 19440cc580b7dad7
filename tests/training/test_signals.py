import pytest
import torch

from polyrhythm.training.signals import squared_norm


def test_the_norm_is_that_of_one_long_vector() -> None:
    gradients = [torch.randn(5, 3), torch.randn(7), torch.randn(())]
    expected = torch.cat([gradient.reshape(-1) for gradient in gradients]).square().sum().item()
    assert squared_norm(gradients) == pytest.approx(expected, rel=1e-5)


def test_nothing_has_no_norm() -> None:
    assert squared_norm([]) == 0.0
