"""One member's tensors for all members: what a joiner starts from, and what re-aligns survivors that differ."""

from collections.abc import Sequence

import torch
from torch import Tensor

from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.ops import broadcast


def hand_over_tensors(generation: Generation, tensors: Sequence[Tensor], source: int) -> None:
    """Overwrite tensors with those of the member of rank `source`, in one broadcast for each type and device.

    Raises:
        GroupError: when a member is lost; the tensors of the others are undefined then.
    """
    kinds = sorted({(str(tensor.device), str(tensor.dtype)) for tensor in tensors})
    for kind in kinds:
        same = [t.detach() for t in tensors if (str(t.device), str(t.dtype)) == kind]
        flat = torch.cat([tensor.reshape(-1) for tensor in same])
        broadcast(generation, flat.view(torch.uint8), source)
        parts: tuple[Tensor, ...] = torch.split_with_sizes(flat, [tensor.numel() for tensor in same])
        for tensor, part in zip(same, parts, strict=True):
            tensor.copy_(part.view_as(tensor))
