"""What members can do with their vectors in memory, by type and operation."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.distributed.distributed_c10d import ReduceOp

UNSHARED: Final = 2**15
"""Numbers that torch adds without a second set of threads, which would compete with the backward pass."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How vectors of one type are combined.

    Args:
        code: tells it from others.
        name: of a vector of so many.
        dtype: of the numbers.
        operation: called as ``np.add`` is.
        most: numbers that one call takes.
    """

    code: int
    name: str
    dtype: torch.dtype
    operation: Callable[..., Any]
    most: int = 2**18

    def numbers(self, memory: Tensor) -> Any:
        """Memory, or a vector, as numbers of the type in the library that adds them up."""
        numbers = memory.view(self.dtype)
        # Numpy has no bfloat16, and adds up float16 one by one.
        return numbers if self.operation is torch.add else numbers.numpy()


KINDS: Final = {
    (torch.float32, "sum"): Kind(1, "sum of {} float32", torch.float32, np.add),
    (torch.float64, "sum"): Kind(2, "sum of {} float64", torch.float64, np.add),
    (torch.int64, "sum"): Kind(3, "sum of {} int64", torch.int64, np.add),
    (torch.float16, "sum"): Kind(4, "sum of {} float16", torch.float16, torch.add, UNSHARED),
    (torch.bfloat16, "sum"): Kind(5, "sum of {} bfloat16", torch.bfloat16, torch.add, UNSHARED),
    (torch.int64, "max"): Kind(6, "largest of {} int64", torch.int64, np.maximum),
    (torch.uint8, "max"): Kind(7, "largest of {} uint8", torch.uint8, np.maximum),
}
BROADCAST: Final = Kind(8, "broadcast of {} bytes", torch.uint8, np.add)
BY_CODE: Final = {kind.code: kind for kind in (*KINDS.values(), BROADCAST)}


def kind_of(dtype: torch.dtype, op: ReduceOp.RedOpType) -> Kind | None:
    """How numbers of that type are combined; None if they are not."""
    if op == ReduceOp.SUM:
        return KINDS.get((dtype, "sum"))
    return KINDS.get((dtype, "max")) if op == ReduceOp.MAX else None


def combine_all(kind: Kind, shown: list[Any], out: Any) -> None:
    first, second, *others = shown
    kind.operation(first, second, out=out)
    for other in others:
        kind.operation(out, other, out=out)


def is_vector(tensors: list[Tensor]) -> bool:
    """Whether these are one tensor whose numbers follow each other in a process's memory."""
    (tensor, *others) = tensors
    plain = tensor.is_cpu and tensor.layout == torch.strided and tensor.is_contiguous() and not tensor.is_complex()
    plain = plain and not tensor.is_neg()  # whose memory has other numbers
    return not others and plain and tensor.numel() > 0


def call_of(kind: Kind, length: int, source: int = 0) -> int:
    """How a member says what it does with which vector."""
    return length << 24 | source << 8 | kind.code


def describe(call: int) -> str:
    """What a member has called for.

    >>> describe(call_of(BROADCAST, 3, 1))
    'broadcast of 3 bytes from rank 1'
    """
    kind = BY_CODE.get(call & 0xFF, BROADCAST)
    text = kind.name.format(call >> 24)
    return f"{text} from rank {call >> 8 & 0xFFFF}" if kind is BROADCAST else text
