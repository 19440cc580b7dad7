"""The hook of forward passes: the one file of ours that torch.compile looks into, see `hide_from_compiler`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle


class ForwardHook:
    """Tells of forward passes that are in no graph, and ends no graph that it is called in."""

    def __init__(self, called: Callable[[nn.Module, Any], None]) -> None:
        self._called = called

    def __call__(self, module: nn.Module, inputs: Any) -> None:
        if not torch.compiler.is_compiling():
            self._called(module, inputs)


def nobody(module: nn.Module, inputs: Any) -> None:
    """Nobody wants to be told."""


class HookOfAll(ForwardHook):
    """That of all modules. There is one: where their number changes, the compiler begins anew."""

    def __init__(self) -> None:
        super().__init__(nobody)
        self._handle: RemovableHandle | None = None

    def begin(self, called: Callable[[nn.Module, Any], None]) -> None:
        self._called = called
        self._handle = self._handle or register_module_forward_pre_hook(self)

    def end(self, stays: bool) -> None:
        """Tell nobody any more; a hook that `stays` has what is compiled stay so, too."""
        self._called = nobody
        if self._handle is not None and not stays:
            self._handle.remove()
            self._handle = None


HOOK_OF_ALL = HookOfAll()
