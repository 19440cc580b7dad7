"""The hook of forward passes: the one file of ours that torch.compile looks into, see `hide_from_compiler`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn


class ForwardHook:
    """Tells of forward passes that are in no graph, and ends no graph that it is called in."""

    def __init__(self, called: Callable[[nn.Module, Any], None]) -> None:
        self._called = called

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        if not torch.compiler.is_compiling():
            self._called(module, inputs)
