"""Payloads of compressed vectors: flat tensors of bytes on the CPU, the same in memory and on the wire."""

from dataclasses import dataclass, field

import torch
from torch import Generator, Tensor
from torch.nn import functional

from polyrhythm.errors import UsageError
from polyrhythm.training.compression import BLOCK, Compression

LARGEST_HALF = torch.finfo(torch.float16).max
SMALLEST = torch.finfo(torch.float32).tiny
"""Keeps the scale of a block of zeros from dividing by zero."""


def encode(compression: Compression, vector: Tensor, random: Generator | None = None) -> Tensor:
    """The payload of a vector, ``compression.size(len(vector))`` bytes.

    Args:
        compression: the compression.
        vector: flat, float32, on any device.
        random: source of what is rounded at random.
    """
    flat = vector.detach().cpu()
    match compression.kind:
        case "fp16":
            return as_bytes(torch.where(flat.isinf(), flat, flat.clamp(-LARGEST_HALF, LARGEST_HALF)).half())
        case "bf16":
            return as_bytes(flat.bfloat16())
        case "int8":
            return encode_int8(flat, random)
        case "topk":
            return encode_top(flat, compression.count(len(flat)))
    return as_bytes(flat)


def decode(compression: Compression, payload: Tensor, elements: int) -> Tensor:
    """The vector of so many elements that a payload stands for; it may share the payload's memory.

    Raises:
        UsageError: if the payload is none of such a vector; what comes over a wire is not trusted.

    >>> int8 = Compression("int8")
    >>> decode(int8, encode(int8, torch.tensor([0.0, -127.0, 3.0])), 3)
    tensor([   0., -127.,    3.])
    """
    if len(payload) != compression.size(elements):
        raise UsageError(
            f"{len(payload)} bytes are no {compression.spec} payload of {elements} numbers, which has "
            f"{compression.size(elements)}; use the same compression everywhere"
        )
    match compression.kind:
        case "fp16":
            return as_numbers(payload, torch.float16).float()
        case "bf16":
            return as_numbers(payload, torch.bfloat16).float()
        case "int8":
            return decode_int8(payload, elements)
        case "topk":
            return decode_top(payload, elements)
    return as_numbers(payload, torch.float32)


def encode_int8(vector: Tensor, random: Generator | None) -> Tensor:
    """Scales, then codes: floor(v / scale + u) with u uniform in [0, 1)."""
    rows = functional.pad(vector, (0, -len(vector) % BLOCK)).view(-1, BLOCK)
    scales = rows.abs().amax(1).div_(127.0)
    noise = torch.rand(rows.shape, generator=random)
    units = rows.div(scales.clamp(min=SMALLEST).unsqueeze(1)).add_(noise).floor_().clamp_(-127.0, 127.0)
    return torch.cat([as_bytes(scales), as_bytes(units.to(torch.int8).view(-1)[: len(vector)])])


def decode_int8(payload: Tensor, elements: int) -> Tensor:
    """Codes times their block's scale."""
    scales = as_numbers(payload[: len(payload) - elements], torch.float32)
    codes = payload[len(payload) - elements :].view(torch.int8).float()
    return codes.mul_(scales.repeat_interleave(BLOCK)[:elements])


def encode_top(vector: Tensor, count: int) -> Tensor:
    """Indices, ascending, then values."""
    chosen = vector.abs().topk(count, sorted=False).indices.sort().values
    return torch.cat([as_bytes(chosen.int()), as_bytes(vector[chosen])])


def decode_top(payload: Tensor, elements: int) -> Tensor:
    """Zero where nothing was sent."""
    half = len(payload) // 2
    indices = as_numbers(payload[:half], torch.int32).long()
    if half and not 0 <= int(indices.min()) <= int(indices.max()) < elements:
        raise UsageError(f"a sparse vector of {elements} numbers names one that is not among them")
    return torch.zeros(elements).index_put_((indices,), as_numbers(payload[half:], torch.float32))


def as_bytes(tensor: Tensor) -> Tensor:
    """The memory of a tensor."""
    return tensor.contiguous().view(torch.uint8)


def as_numbers(payload: Tensor, dtype: torch.dtype) -> Tensor:
    """Bytes as numbers; copied if they do not begin where numbers may."""
    aligned = payload.storage_offset() % dtype.itemsize == 0
    return (payload if aligned else payload.clone()).view(dtype)


@dataclass(slots=True)
class Compressor:
    """One worker's sending end: its random source, and what it has not sent yet.

    With v_i given and s_i what arrives of it, ``sum s_i + rest == sum v_i`` at any time under error feedback.

    Args:
        compression: the compression.
        random: source of what is rounded at random.

    Example:
        >>> send = Compressor(Compression("topk", 0.5))
        >>> send(torch.tensor([1.0, 4.0])), send(torch.tensor([1.0, 1.5]))
        (tensor([0., 4.]), tensor([2., 0.]))
    """

    compression: Compression
    random: Generator | None = None
    rests: dict[int, Tensor] = field(default_factory=dict)
    """What was not sent yet, by the first element of the slice to which it belongs."""

    @classmethod
    def of(cls, compression: Compression, seed: int, worker: int) -> "Compressor | None":
        """That of a worker; None if nothing is compressed."""
        if compression.kind == "none":
            return None
        return cls(compression, torch.Generator().manual_seed(seed * 1_000_003 + worker))

    def encode(self, vector: Tensor, start: int = 0) -> Tensor:
        """The payload of a vector, or of the slice of one that begins at `start`; `vector` stays as it is."""
        if not self.compression.feedback:
            return encode(self.compression, vector, self.random)
        wanted = vector.detach().cpu() + self.rests[start] if start in self.rests else vector.detach().cpu()
        payload = encode(self.compression, wanted)
        self.rests[start] = wanted - decode(self.compression, payload, len(vector))
        return payload

    def __call__(self, vector: Tensor, start: int = 0) -> Tensor:
        """What arrives of a vector."""
        return decode(self.compression, self.encode(vector, start), len(vector)).to(vector.device)
