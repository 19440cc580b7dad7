"""What is watched while a script makes its first step: how it gets from mini-batches to an optimizer's step."""

from collections.abc import Iterable
from typing import Any

from torch import nn
from torch.nn import Parameter
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim import Optimizer

from polyrhythm.runtime.script.notices import refuse, script_line

PATIENCE = 100
"""Backward passes without a step of an optimizer after which there will be none."""


class WarmUpStep:
    """Watches models and backward passes until a session takes over."""

    def __init__(self) -> None:
        self.backwards = 0
        self.stepped_at = ""
        self._called: dict[nn.Module, None] = {}
        self._hook = register_module_forward_pre_hook(self._forward)

    def backward(self) -> None:
        self.backwards += 1
        if not self.stepped_at and self.backwards > PATIENCE:
            raise refuse(
                f"{PATIENCE} backward passes and no step of an optimizer of torch.optim; parameters that a script "
                "changes by hand cannot follow a policy"
            )

    def step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any], batches: int) -> None:
        """An optimizer is about to step, `batches` mini-batches after the step before."""
        check_step(optimizer, args, kwargs)
        if not batches:
            raise refuse("optimizer.step without a mini-batch of a DataLoader; only a loader's data can be dealt out")
        if batches > self.backwards:
            raise refuse(
                f"{batches} mini-batches were read but only {self.backwards} used before this step; "
                "a script that reads ahead of its steps cannot follow a policy"
            )
        self.backwards = 0
        self.stepped_at = self.stepped_at or script_line()

    def model_of(self, optimizer: Optimizer) -> nn.Module:
        """The module that has just these parameters, among those that were called.

        Raises:
            RefusalError: if there is none.
        """
        wanted = set(trainable(parameter for group in optimizer.param_groups for parameter in group["params"]))
        for module in self._called:
            if set(trainable(module.parameters())) == wanted:
                return module
        joint = nn.ModuleList(outermost(self._called, wanted))
        if set(trainable(joint.parameters())) == wanted:
            return joint
        problem = "the model of this optimizer was not found; train one module with all its parameters"
        raise refuse(problem, self.stepped_at)

    def close(self) -> None:
        self._hook.remove()
        self._called.clear()

    def _forward(self, module: nn.Module, inputs: Any) -> None:
        self._called.setdefault(module)


def check_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if (len(args) > 1 or kwargs) and any(argument is not None for argument in (*args[1:], *kwargs.values())):
        raise refuse("optimizer.step with a closure computes gradients by itself; call backward() before step()")
    if getattr(optimizer, "grad_scale", None) is not None:
        raise refuse("a GradScaler with a fused optimizer hides the true gradients; make it with fused=False")
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and parameter.grad.is_sparse:
                raise refuse("sparse gradients cannot be exchanged; make the embedding with sparse=False")


def trainable(parameters: Iterable[Parameter]) -> Iterable[Parameter]:
    return (parameter for parameter in parameters if parameter.requires_grad)


def outermost(modules: Iterable[nn.Module], wanted: set[Parameter]) -> list[nn.Module]:
    """Modules with wanted parameters that are not part of another one."""
    able = [module for module in modules if any(p in wanted for p in module.parameters())]
    return [module for module in able if not any(module in other.children() for other in able)]
