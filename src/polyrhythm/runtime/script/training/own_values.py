"""Collectives inside the loop of workers that make steps of their own, and what becomes of their results."""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves

from polyrhythm.errors import RefusalError
from polyrhythm.runtime.script.notices import callers, script_line, tell
from polyrhythm.runtime.script.training.objections import APART, Objections

CALLED = {
    "allreduce": "all_reduce",
    "allreduce_coalesced": "all_reduce_coalesced",
    "allgather": "all_gather",
    "_allgather_base": "all_gather_into_tensor",
    "_reduce_scatter_base": "reduce_scatter_tensor",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all_single",
    "recv_anysource": "recv",
}
"""What the script has called, where that has another name than the method of a group."""

REDUCED = ("allreduce", "allreduce_coalesced", "reduce")
"""Collectives that write into the tensors that they take, so that these are seen before."""

OWN = (*REDUCED, "allgather", "_allgather_base", "gather", "barrier")
"""Collectives that have a meaning for one worker by itself."""

TOGETHER = "use policies in synchronous mode (bsp, local)"
MOVE = f"{TOGETHER}, or do it after the loop"
LEAVE = f"{TOGETHER}, or leave gradients and parameters to DistributedDataParallel, which follows the policy"
OMIT = f"{TOGETHER}, or leave it out, so that each worker takes its own"
COUNT = f"count in whole numbers (.long()), which may be each worker's own, or {TOGETHER}"

DIFFERENTIATED = ("torch/nn/modules/_functions.py", "torch/distributed/nn/functional.py")
"""Files of torch whose collectives are part of a forward or backward pass, as those of SyncBatchNorm."""

MOST_SEEN = 256
"""Collectives that are looked at once; of a script that has more, with other sizes each time, every one is."""


class OwnValues:
    """What a worker's own value of a collective would be, and whether it may have it.

    The first time that a line of the script comes to one, what becomes of its result is followed until the next step.
    Whole numbers are not: a loss that is divided by the tokens of all, say, is then the mean over the worker's own.
    """

    def __init__(self) -> None:
        self._places: set[str] = set()
        self._seen: set[tuple[str, int]] = set()
        """Lines where workers that make all steps together have come to one, and how much it takes: a look at all
        parameters costs something in each step.
        """
        self._untold: list[tuple[str, str]] = []
        """What is said, and of which line, if nothing that is followed is refused."""
        self.followed: Followed | None = None
        """Until the next step; mostly there is nothing to follow."""

    def check(
        self, name: str, outputs: list[Tensor], when: str, parameters: Sequence[Tensor], objections: Objections
    ) -> None:
        """A worker is about to have its own value, under a policy or after one."""
        place = script_line()
        if place in self._places:
            return
        what, remedy = f"{called(name)} has no common value {when}", remedy_of(name, outputs, parameters)
        if name not in OWN or takes_gradients(outputs, parameters):
            raise objections.refusal(f"{what}; {remedy}", place)
        self._places.add(place)
        self._untold.append((f"{called(name)} gives each worker its own value {when}", place))
        if name == "barrier" or all(map(counts, outputs)):
            self._tell()
        else:
            self._follow(outputs, objections.refusal(f"{what}, and a gradient depends on it; {remedy}", place))

    def foresee(self, name: str, outputs: list[Tensor], parameters: Sequence[Tensor], objections: Objections) -> None:
        """A collective of workers that make all steps together; what others could not have stands against them.

        What becomes of its result is not followed here.
        """
        if objections.knows("apart"):
            return
        if (seen := (script_line(), sum(tensor.numel() for tensor in outputs))) in self._seen:
            return
        if len(self._seen) < MOST_SEEN:
            self._seen.add(seen)
        if name not in OWN or takes_gradients(outputs, parameters):
            objections.foresee(lambda who: foreseen(name, outputs, parameters, who))
        elif is_differentiated() or (name != "barrier" and takes_all(outputs, parameters)):
            objections.note("apart", foreseen(name, outputs, parameters, APART))

    def stepped(self, followed: "Followed") -> None:
        """A step is made, in which nothing has come of what is followed."""
        self._tell()
        if _get_current_dispatch_mode() is followed:
            followed.__exit__(None, None, None)  # type: ignore[no-untyped-call]
            self.followed = None

    def left_loop(self) -> None:
        """No step may follow, before which something could come of it."""
        self._tell()

    def _tell(self) -> None:
        untold, self._untold = self._untold, []
        for what, place in untold:
            tell(what, place)

    def _follow(self, outputs: list[Tensor], error: RefusalError) -> None:
        if self.followed is None:
            self.followed = Followed()
            self.followed.__enter__()  # type: ignore[no-untyped-call]
        self.followed.add(outputs, error)


class Trail(NamedTuple):
    """A tensor in some memory, which it keeps, and the error of the collective that it comes from."""

    tensor: Tensor
    error: RefusalError


class Followed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Finds out what is computed from some tensors, and raises their error if it is what it must not be.

    Attributes:
        reached: by its memory, what is.
        recorded: of these what a backward pass would go through.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.reached: dict[int, Trail] = {}
        self.recorded: dict[int, Trail] = {}

    def add(self, tensors: Iterable[Tensor], error: RefusalError) -> None:
        self.reached |= {key(tensor): Trail(tensor, error) for tensor in tensors}

    def backward(self, roots: Iterable[Tensor]) -> None:
        self._check(self.recorded, roots)

    def step(self, parameters: Iterable[Tensor]) -> None:
        self._check(self.reached, [p.grad for p in parameters if p.grad is not None])

    def _check(self, found: dict[int, Trail], tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            if key(tensor) in found:
                raise found[key(tensor)].error

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, Tensor)]
        if trail := next((self.reached[key(tensor)] for tensor in given if key(tensor) in self.reached), None):
            made = [*(each for each in tree_leaves(result) if isinstance(each, Tensor)), *written(function, args)]
            self.add(made, trail.error)
            if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
                self.recorded |= {key(tensor): Trail(tensor, trail.error) for tensor in made}
        return result


def called(name: str) -> str:
    """What the script has called, by the method of its group."""
    return f"{CALLED.get(name, name)} inside the step loop"


def foreseen(name: str, outputs: Sequence[Tensor], parameters: Sequence[Tensor], who: str) -> str:
    """What stands against such workers, though the policy in force has none."""
    return f"{called(name)}, for which {who} have no common value; {remedy_of(name, outputs, parameters)}"


def remedy_of(name: str, outputs: Sequence[Tensor], parameters: Sequence[Tensor]) -> str:
    """What its user can do about a collective, before it is made, if workers cannot have their own values of it."""
    if name not in OWN:
        return MOVE
    if takes_gradients(outputs, parameters) or takes_all(outputs, parameters):
        return LEAVE
    counted = name in REDUCED and not is_differentiated() and all(map(is_whole, outputs))
    return COUNT if counted else OMIT


def takes_gradients(tensors: Iterable[Tensor], parameters: Iterable[Tensor]) -> bool:
    """Whether these share memory with what is trained, or its gradients."""
    trained = {key(each) for p in parameters for each in (p, p.grad) if each is not None}
    return any(key(tensor) in trained for tensor in tensors)


def takes_all(tensors: Iterable[Tensor], parameters: Iterable[Tensor]) -> bool:
    """Whether there is as much of these as there is to train: copies of all gradients, in one vector or several."""
    return sum(tensor.numel() for tensor in tensors) == sum(p.numel() for p in parameters)


def is_differentiated() -> bool:
    """Whether a backward pass goes through the collective at hand, or is under way in it."""
    return any(path.endswith(DIFFERENTIATED) for path, _ in callers())


def counts(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex())


def is_whole(tensor: Tensor) -> bool:
    """Whether these are whole numbers, of whatever type.

    >>> is_whole(torch.tensor([2.0, 0.0])), is_whole(torch.tensor(0.5)), is_whole(torch.tensor(3))
    (True, False, True)
    """
    return counts(tensor) or (not tensor.is_complex() and bool((tensor.detach() % 1 == 0).all()))


def written(function: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """Arguments that an operation changes in place."""
    pairs = zip(function._schema.arguments, args, strict=False)
    changed = [value for argument, value in pairs if argument.alias_info is not None and argument.alias_info.is_write]
    return [each for each in tree_leaves(changed) if isinstance(each, Tensor)]


def key(tensor: Tensor) -> int:
    """Of the memory that a tensor and its views share."""
    address: int = tensor.untyped_storage()._cdata
    return address
