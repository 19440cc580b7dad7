"""Values as JSON has them, and back."""

import pytest
import torch

from polyrhythm.runtime.checkpoint.plain_values import Aside, plain, revived


@pytest.mark.parametrize("tensor", [torch.zeros(0, 3), torch.zeros(2, 0, 1), torch.zeros(0), torch.tensor(2.0)])
def test_a_tensor_among_plain_values_keeps_its_shape(tensor: torch.Tensor) -> None:
    assert revived(plain([tensor]))[0].shape == tensor.shape


@pytest.mark.parametrize("tensor", [torch.zeros(0, 3), torch.tensor(2.0), torch.ones(2, dtype=torch.bfloat16)])
def test_a_tensor_set_aside_comes_back_as_a_copy(tensor: torch.Tensor) -> None:
    aside = Aside()
    found = revived(plain({"a": (tensor,)}, aside), aside.tensors)["a"][0]
    assert torch.equal(found, tensor)
    assert found.dtype == tensor.dtype
    assert found is not tensor
