"""Tensors in a file of the safetensors layout: a length, a header in JSON, and numbers. Nothing in it is code."""

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from polyrhythm.errors import UsageError

NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

TYPES = {name: dtype for dtype, name in NAMES.items()}

MOST_HEADER = 100 * 2**20
"""Bytes of a header, as the layout limits them."""

BLOCK = 2**20


class FileMark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a file must be: its size and its digest."""

    bytes: int
    sha256: str


def mark_of(path: Path) -> FileMark:
    """The mark of a file as it is now.

    Raises:
        OSError: if it cannot be read.
    """
    with path.open("rb") as stream:
        digest = hashlib.file_digest(stream, "sha256")
        return FileMark(stream.tell(), digest.hexdigest())


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> FileMark:
    """Write tensors of the CPU, and wait until the disk has them.

    Raises:
        OSError: if it cannot be written, as on a full disk.
    """
    digest, written = hashlib.sha256(), 0
    with path.open("wb") as stream:
        for piece in pieces(tensors):
            digest.update(piece)
            written += stream.write(piece)
        stream.flush()
        os.fsync(stream.fileno())
    return FileMark(written, digest.hexdigest())


def pieces(tensors: Mapping[str, Tensor]) -> Iterator[Any]:
    """The file from its beginning to its end; numbers in blocks."""
    header: dict[str, Any] = {}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": type_name(name, tensor), "shape": list(tensor.shape), "data_offsets": [start, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    yield len(encoded).to_bytes(8, "little") + encoded
    for tensor in tensors.values():
        data: memoryview = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
        for start in range(0, len(data), BLOCK):
            yield data[start : start + BLOCK]


def type_name(name: str, tensor: Tensor) -> str:
    """How the layout calls a tensor's type."""
    if tensor.dtype not in NAMES:
        raise UsageError(f"{name} has the type {tensor.dtype}, which a checkpoint cannot keep")
    return NAMES[tensor.dtype]


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, in memory of their own."""
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > MOST_HEADER:
                raise UsageError(f"{path} is no file of tensors: its header is said to have {length} bytes")
            header = json.loads(stream.read(length))
            data = 8 + length
            return {name: read_one(stream, data, entry) for name, entry in header.items() if name != "__metadata__"}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is no file of tensors: {error}") from None


def read_one(stream: Any, data: int, entry: Mapping[str, Any]) -> Tensor:
    """One tensor; `data` is where the numbers begin."""
    dtype, shape, (start, end) = TYPES[entry["dtype"]], [int(size) for size in entry["shape"]], entry["data_offsets"]
    size = prod(shape) * torch.empty(0, dtype=dtype).element_size()
    if end - start != size or min(shape, default=0) < 0:
        raise ValueError(f"a tensor of shape {shape} has {end - start} bytes")
    stream.seek(data + start)
    numbers = bytearray(stream.read(size))
    if len(numbers) != size:
        raise ValueError("it ends too early")
    return torch.frombuffer(numbers, dtype=dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
