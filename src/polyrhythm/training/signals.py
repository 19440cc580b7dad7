"""What is measured of gradients for policies that look at them, and of parameters for who has changed them."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor


def squared_norm(gradients: Iterable[Tensor]) -> float:
    """Squared L2 norm of all gradients together, in one fused pass; of none it is zero. Reads their device once.

    SelSync smooths it and looks at its relative change; see `polyrhythm.policies.selsync`.

    >>> squared_norm([torch.tensor([3.0]), torch.tensor([[0.0, 4.0]])])
    25.0
    """
    dense = (each.coalesce().values() if each.is_sparse else each for each in gradients)
    tensors = [each if each.dtype in (torch.float32, torch.float64) else each.float() for each in dense]
    return float(torch.stack(torch._foreach_norm(tensors)).square_().sum()) if tensors else 0.0


def sizes_of(parameters: Sequence[Tensor]) -> Tensor:
    """Two norms of each of these, which hardly any change of its values leaves as they are.

    >>> sizes_of([torch.tensor([3.0, -4.0])]).tolist()
    [5.0, 7.0]
    """
    values = [parameter.detach() for parameter in parameters]
    norms = [norm.double() for order in (2, 1) for norm in torch._foreach_norm(values, order, dtype=wide(values))]
    return torch.stack(norms).cpu().nan_to_num()


def wide(values: Sequence[Tensor]) -> torch.dtype | None:
    """Where numbers of half the size are summed up: in their own type a norm hardly tells one from another."""
    half = any(value.dtype in (torch.float16, torch.bfloat16) for value in values)
    return torch.float64 if half else None
