"""What is watched while a script makes its first step: how it gets from mini-batches to an optimizer's step."""

import functools
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.nn import Parameter
from torch.optim import LBFGS, Optimizer

from polyrhythm.runtime.script.data.own_data import rows
from polyrhythm.runtime.script.forward_hook import HOOK_OF_ALL, ForwardHook
from polyrhythm.runtime.script.notices import refuse, script_line, tell

LOOKED_AT = 64
"""Elements of each parameter that are looked at, at most, to see whether it changes."""

MOST_ALONE = 16
"""Steps that a worker makes by itself while an optimizer that may never step has not stepped."""


BY_HAND = (
    "without a step of an optimizer of torch.optim; what a script, or an optimizer that is none of torch's, changes by "
    "itself cannot follow a policy; let one of torch.optim make the steps"
)

DIFFERENTIATING = frozenset({torch._C._functorch.TransformType.Grad, torch._C._functorch.TransformType.Jvp})
"""Transforms of torch.func that compute gradients, of parameters that are not what a policy sets; `vmap` does not."""

TRANSFORMED = (
    "a step with gradients of torch.func, which are of parameters that the script has taken before; a policy may give "
    "it others meanwhile. Compute a loss with the model itself, and call backward()"
)


class WarmUpStep:
    """Watches models and backward passes until a session takes over."""

    def __init__(self) -> None:
        self.backwards = self._runs = self._given = 0
        """Since the last step: backward passes, mini-batches of which they are, and samples that models were given."""
        self.parts = 1
        self.samples = 0
        """Mini-batches of the first step, and their samples."""
        self._steps = 0
        self.ahead = False
        """Whether mini-batches were read that no step has used yet."""
        self.again: Callable[[bool], None] = lambda _: None
        """Called when a model is called after a step; whether it is the one that was called first of all."""
        self._fresh = self._has_read = True
        self._transformed = False
        """Whether a model was called by `torch.func.grad` or the like since the last step."""
        self.stepped_at = self._first_at = ""
        self._before: dict[Parameter, Tensor] = {}
        self._after: dict[Parameter, tuple[float, float]] = {}
        self._called: dict[nn.Module, None] = {}
        self._first: nn.Module | None = None
        self._frozen: dict[Parameter, tuple[int, int, Tensor]] = {}
        # Compiled modules warn of global hooks; ours does nothing inside a graph.
        warnings.filterwarnings("ignore", message="Using `torch.compile", category=UserWarning)
        HOOK_OF_ALL.begin(self._forward)
        self._eager = ExitStack()

    def backward(self) -> None:
        self.backwards += 1
        second = self.backwards == 2 and not self._has_read
        self._runs += self._has_read
        self._fresh, self._has_read = True, False
        self._first_at = self._first_at or script_line()
        if second or self.stepped_at or self.backwards & (self.backwards - 1):
            return  # a look at each doubling will do; sharpness-aware ones make two passes, and then take changes back
        if self.backwards > 1 and any(not torch.equal(part(p), before) for p, before in self._before.items()):
            raise refuse(f"parameters have changed {BY_HAND}")
        self._before = {p: part(p).clone() for module in self._called for p in trainable(own_of(module))}

    def step(self, optimizer: Optimizer, batches: int, beside: bool) -> None:
        """An optimizer is about to step, `batches` mini-batches after the step before, or `beside` another one."""
        check_step(optimizer)
        if self._transformed and not self.backwards:
            raise refuse(TRANSFORMED)
        self._transformed = False
        self._steps += 1
        if beside:
            self.backwards = 0
            return
        self.ahead = batches > self._runs
        if not self.stepped_at:
            self.parts, self.samples = max(1, self._runs), self._given
        self.backwards = self._runs = self._given = 0
        self._before.clear()
        self.stepped_at = self.stepped_at or script_line()

    def skip(self) -> None:
        """A GradScaler has left a step out."""
        self.backwards = self._runs = self._given = 0
        self._before.clear()

    def stepped(self, optimizer: Optimizer) -> None:
        self._after |= {p: summary(p) for group in optimizer.param_groups for p in trainable(group["params"])}

    @property
    def changed(self) -> bool:
        """Whether the script has changed what it trains since an optimizer has stepped, as by clipping weights."""
        return any(summary(p) != after for p, after in self._after.items())

    @property
    def called(self) -> Iterable[nn.Module]:
        """All modules that were."""
        return self._called

    def read(self) -> None:
        """The script gets a mini-batch of a loader."""
        self._has_read = True

    def model_of(self, optimizer: Optimizer) -> nn.Module:
        """The module that has just these parameters, among those that were called."""
        wanted = dict.fromkeys(trainable(p for group in optimizer.param_groups for p in group["params"]))
        for module in self._called:
            if set(trainable(module.parameters())) == set(wanted):
                return module
        loose = [p for p in wanted if not isinstance(p, Parameter)]
        joint = nn.ModuleList([*outermost(self._called, set(wanted)), *([Loose(loose)] if loose else [])])
        if not wanted.keys() <= set(joint.parameters()):
            problem = (
                "the model of this optimizer was not found; train modules that are called, with all its parameters"
            )
            raise refuse(problem, self.stepped_at)
        return joint[0] if len(joint) == 1 else joint

    def has_seen(self, optimizer: Optimizer) -> bool:
        """Whether all its parameters belong to modules that were called."""
        seen = {p for module in self._called for p in own_of(module)}
        return all(p in seen for group in optimizer.param_groups for p in group["params"])

    def awaits(self, optimizers: Iterable[Optimizer]) -> bool:
        """Whether one of these, which have not stepped, may be about to: a session would write what its pass needs."""
        return self._steps <= MOST_ALONE and any(self.has_seen(each) for each in optimizers)

    def moving(self, model: nn.Module) -> dict[str, Tensor]:
        """Floating-point parameters that nobody trains, but that the script has changed since they were first used."""
        frozen = {name: p for name, p in model.named_parameters() if p in self._frozen and not p.requires_grad}
        return {name: p for name, p in frozen.items() if p.is_floating_point() and has_changed(p, self._frozen[p])}

    def check_end(self, trained: bool) -> None:
        """The script has ended before a session took over; whether it has trained before."""
        if self.backwards and not self.stepped_at:
            passes = "1 backward pass was" if self.backwards == 1 else f"{self.backwards} backward passes were"
            raise refuse(f"{passes} made {BY_HAND}", self._first_at)
        if self.stepped_at:
            tell("the script has ended after its first step, which torch has made", self.stepped_at)
        elif not trained:
            tell("the script has ended and trained nothing", "script")

    def run_eagerly(self) -> None:
        """Until a session takes over, what is compiled runs as it is written: within a graph no module is seen."""
        self.run_compiled()
        self._eager.enter_context(torch.compiler.set_stance("force_eager"))

    def run_compiled(self) -> None:
        self._eager.close()

    def close(self, compiled: bool) -> None:
        """A session takes over, perhaps from a script that has something `compiled` already."""
        HOOK_OF_ALL.end(stays=compiled)
        self.run_compiled()
        for kept in self._called, self._frozen, self._after:
            kept.clear()

    def _forward(self, module: nn.Module, inputs: Any) -> None:
        if not (transforms := transforms_around()):
            self._note(module, inputs)
        elif transforms & DIFFERENTIATING:
            self._transformed = True
            self._called.setdefault(module)
        else:
            with temporarily_clear_interpreter_stack():
                self._note(module, ())  # its inputs are of one sample

    def _note(self, module: nn.Module, inputs: Any) -> None:
        if isinstance(module, nn.DataParallel):
            return  # of one device: calls its module, which is the model
        if module not in self._called:
            self._called[module] = None
            untrained = (p for p in module.parameters() if not p.requires_grad and p not in self._frozen)
            self._frozen |= {p: looked_at(p) for p in untrained}
        if not (torch.is_grad_enabled() and module.training):
            return
        if self._fresh and (samples := rows(inputs)):
            self._given, self._fresh = self._given + samples, False
        if self._first is None:
            self._first = module
        if self.stepped_at:
            self.again(module is self._first)


class Loose(nn.Module):
    """Tensors that are trained but belong to no module, such as the temperature of an actor.

    >>> [name for name, _ in Loose([torch.zeros(1, requires_grad=True)]).named_parameters()]
    ['0']
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self._parameters.update({str(number): tensor for number, tensor in enumerate(tensors)})  # type: ignore[misc]


class ForwardWatch(ForwardHook):
    """A hook of a model; copies of the model, in memory or in a file, are not watched.

    Args:
        called: told of each forward pass, whether a step may follow it, and of the model's inputs.
    """

    def __init__(self, called: Callable[[bool, Any], None]) -> None:
        super().__init__(functools.partial(tell_of_pass, called))

    def __reduce__(self) -> tuple[Any, ...]:
        # Who loads such a file need not have Polyrhythm: this gives the inputs back as they are.
        return functools.partial, ({}.get,)


def tell_of_pass(called: Callable[[bool, Any], None], module: nn.Module, inputs: Any) -> None:
    trains = torch.is_grad_enabled() and module.training
    if not (transforms := transforms_around()):
        called(trains, inputs)
    elif not transforms & DIFFERENTIATING:
        with temporarily_clear_interpreter_stack():
            called(trains, ())


def transforms_around() -> set[Any]:
    """The transforms of torch.func that the script computes in just now."""
    if torch._C._functorch.peek_interpreter_stack() is None:
        return set()
    return {level.key() for level in torch._C._functorch.get_interpreter_stack() or ()}


def watch(module: nn.Module, called: Callable[[bool, Any], None]) -> None:
    """Have `called` told of a module's forward passes; a module that an earlier training has watched is already."""
    if module not in _watched:
        module.register_forward_pre_hook(ForwardWatch(called))
        _watched.add(module)


_watched: "WeakSet[nn.Module]" = WeakSet()


@contextmanager
def unwatched() -> Iterator[None]:
    """Models without our hooks: of a file that is read with weights only, all that is in it must be allowed."""
    places = [(module._forward_pre_hooks, {**module._forward_pre_hooks}) for module in _watched]
    ours = [(hooks, key, hook) for hooks, all_ in places for key, hook in all_.items() if type(hook) is ForwardWatch]
    for hooks, key, _ in ours:
        del hooks[key]
    try:
        yield
    finally:
        for hooks, key, hook in ours:
            hooks[key] = hook


def part(parameter: Parameter) -> Tensor:
    return parameter.detach().reshape(-1)[:LOOKED_AT]


@torch.no_grad()
def summary(parameter: Parameter) -> tuple[float, float]:
    """Two numbers that no common change of a parameter leaves as they are."""
    return parameter.sum().item(), parameter.norm().item()


def looked_at(parameter: Parameter) -> tuple[int, int, Tensor]:
    """What tells whether it is changed, or replaced, later: also by less than its precision."""
    return parameter.data_ptr(), parameter._version, part(parameter).clone()


def has_changed(parameter: Parameter, before: tuple[int, int, Tensor]) -> bool:
    place, version, values = looked_at(parameter)
    return (place, version) != before[:2] or not torch.equal(values, before[2])


Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


def run_closure(optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
    """Have the closure of a step compute its gradients before they are exchanged; what the step is to get instead.

    Args:
        optimizer: whose step it is.
        args, kwargs: of the step; `args` begin with the optimizer itself.
    """
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    if closure is None:
        return None
    if isinstance(optimizer, LBFGS):
        raise refuse(
            "LBFGS calls its closure several times a step, each time with other parameters, so that a step has no "
            "gradient that workers could exchange; use another optimizer"
        )
    with torch.enable_grad():
        loss = closure()
    return (optimizer, Computed(optimizer, loss)), {}


class Computed:
    """In place of a closure that has been called: says what it has returned, to an optimizer that does this first.

    Args:
        optimizer: whose step it is.
        loss: what the closure has returned.
    """

    def __init__(self, optimizer: Optimizer, loss: Any) -> None:
        self._optimizer, self._loss = optimizer, loss
        self._versions = self._current()
        self._called = False

    def __call__(self) -> Any:
        if self._called or self._current() != self._versions:
            raise refuse(
                f"{type(self._optimizer).__name__} calls its closure in the middle of its step; gradients are "
                "exchanged once, before it. Use an optimizer that calls it once, first"
            )
        self._called = True
        return self._loss

    def _current(self) -> list[int]:
        return [p._version for group in self._optimizer.param_groups for p in group["params"]]


def check_step(optimizer: Optimizer) -> None:
    if getattr(optimizer, "grad_scale", None) is not None:
        raise refuse("a GradScaler with a fused optimizer hides the true gradients; make it with fused=False")


def own_of(module: nn.Module) -> Iterable[Parameter]:
    """Its parameters without those of modules in it; a script's own `parameters` may have no such argument."""
    return (p for p in module._parameters.values() if p is not None)


def trainable(parameters: Iterable[Parameter]) -> Iterable[Parameter]:
    return (parameter for parameter in parameters if parameter.requires_grad)


def outermost(modules: Iterable[nn.Module], wanted: set[Parameter]) -> list[nn.Module]:
    """Modules with wanted parameters that are not part of another one."""
    able = [module for module in modules if any(p in wanted for p in module.parameters())]
    return [module for module in able if not any(module in other.children() for other in able)]
