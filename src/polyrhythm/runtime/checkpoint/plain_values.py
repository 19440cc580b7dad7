"""What a script keeps beside tensors, as JSON has it, and back; tensors within it go into a file of tensors."""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyrhythm.runtime.checkpoint.tensor_file import NAMES

DICTS = {kind.__name__: kind for kind in (OrderedDict, Counter)}
"""Mappings beside dict that come back as what they were; a file that is only read names no class of a script."""


@dataclass
class Aside:
    """What of plain values is not in them.

    Attributes:
        tensors: by the name that stands for each; they are the script's own, not copied.
        turned: what comes back as something else, a few words each.
    """

    tensors: dict[str, Tensor] = field(default_factory=dict)
    turned: list[str] = field(default_factory=list)

    def put(self, tensor: Tensor) -> str:
        name = f"within.{len(self.tensors)}"
        self.tensors[name] = tensor
        return name

    def turn(self, value: Any, kind: type) -> None:
        if type(value) is not kind:
            self.turned.append(f"{type(value).__name__}, which comes back from a checkpoint as a {kind.__name__}")


def plain(value: Any, aside: Aside | None = None) -> Any:
    """A value as JSON has it; tensors, tuples and keys that are numbers are marked, so that they come back as such.

    Raises:
        TypeError: with the kind of what has no such form.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        return plain_tensor(value, aside)
    if isinstance(value, (list, tuple)):
        kind: type = list if isinstance(value, list) else tuple
        parts = [plain(each, aside) for each in value]
        if aside is not None:
            aside.turn(value, kind)
        return parts if kind is list else {"tuple": parts}
    if isinstance(value, Mapping):
        return plain_mapping(value, aside)
    raise TypeError(type(value).__name__)


def plain_tensor(value: Tensor, aside: Aside | None) -> Any:
    if value.layout is not torch.strided or value.is_complex() or value.is_quantized:
        raise TypeError("complex tensor" if value.is_complex() else "sparse or quantized tensor")
    if aside is not None and value.dtype in NAMES:
        return {"within": aside.put(value)}
    shape = {} if value.numel() else {"shape": list(value.shape)}  # which an empty list does not tell
    return {"tensor": value.tolist(), "type": str(value.dtype).removeprefix("torch."), **shape}


def plain_mapping(value: Mapping[Any, Any], aside: Aside | None) -> Any:
    items = [[plain(key, aside), plain(each, aside)] for key, each in value.items()]
    if type(value).__name__ in DICTS and type(value) in DICTS.values():
        return {"items": items, "kind": type(value).__name__}
    if aside is not None:
        aside.turn(value, dict)
    return {"items": items}


def revived(value: Any, tensors: Mapping[str, Tensor] | None = None) -> Any:
    """What `plain` was given, with a copy of each tensor; what is none of its marks stays as it is."""
    if isinstance(value, list):
        return [revived(each, tensors) for each in value]
    if not isinstance(value, dict):
        return value
    if "within" in value:
        return (tensors or {})[value["within"]].clone()
    if "tensor" in value:
        tensor = torch.tensor(value["tensor"], dtype=getattr(torch, value["type"]))
        return tensor.reshape(value.get("shape", tensor.shape))
    if "tuple" in value:
        return tuple(revived(each, tensors) for each in value["tuple"])
    items = {revived(key, tensors): revived(each, tensors) for key, each in value["items"]}
    return DICTS[value["kind"]](items) if "kind" in value else items
