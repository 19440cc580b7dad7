"""A process's streams of random numbers: torch's, numpy's and Python's own."""

import random
from typing import Any

import msgspec
import numpy as np
import torch


def capture_streams(between: bool = False) -> bytes:
    """Where the streams stand; `between` says that the next mini-batch comes from a DataLoader that is yet to be made.

    >>> kept = capture_streams()
    >>> first = torch.rand(2), random.random()
    >>> restore_streams(kept)
    >>> torch.equal(torch.rand(2), first[0]), random.random() == first[1]
    (True, True)
    """
    name, keys, position, has_gauss, gauss = np.random.get_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return msgspec.msgpack.encode(
        {
            "torch": bytes(torch.get_rng_state().numpy()),
            "cuda": [bytes(state.numpy()) for state in cuda],
            "numpy": [name, np.asarray(keys, dtype="<u4").tobytes(), position, has_gauss, gauss],
            "python": random.getstate(),
            "between": between,
        }
    )


def restore_streams(kept: bytes) -> None:
    """Let the streams go on from where they stood; on GPUs as far as there are as many as there were."""
    state: dict[str, Any] = msgspec.msgpack.decode(kept)
    torch.set_rng_state(as_tensor(state["torch"]))
    if state["cuda"] and torch.cuda.is_available():
        for device, one in list(enumerate(state["cuda"]))[: torch.cuda.device_count()]:
            torch.cuda.set_rng_state(as_tensor(one), device)
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, np.frombuffer(keys, dtype="<u4"), *rest))
    version, numbers, gauss = state["python"]
    random.setstate((version, tuple(numbers), gauss))


def stand_between(kept: bytes) -> bool:
    """Whether a DataLoader draws its seed next: so they must be restored before it is made, else after.

    >>> stand_between(capture_streams(between=True)), stand_between(capture_streams())
    (True, False)
    """
    return bool(msgspec.msgpack.decode(kept)["between"])


def as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
