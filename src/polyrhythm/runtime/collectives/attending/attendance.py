"""How a rank takes part in the exchange of a backward pass that its script does not make: nobody waits for it."""

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import backward  # as torch has it: scripts' own passes are listened to
from torch.distributed.distributed_c10d import ReduceOp
from torch.nn.parallel import DistributedDataParallel

from polyrhythm.errors import GroupError
from polyrhythm.runtime.collectives.ops import all_reduce
from polyrhythm.runtime.collectives.switchable_group import SwitchGroup

FORWARD, BACKWARD = "f", "b"

run_torchs: Callable[..., Any] = DistributedDataParallel.forward
"""As torch has it, also in an adapted script."""

WHY_NOT_SEVERAL = "what belongs to a step of several DistributedDataParallel is not known"
WHY_NOT_INNER = "its SyncBatchNorm exchanges statistics in the forward pass"
WHY_NOT_OTHER = "it has made other passes than in the step before"


class StepPasses:
    """Which passes of a step exchange: forward ones buffers, backward ones gradients.

    It is beside the module, as `Module` sets its own attributes slowly.

    Attributes:
        usual: those of the step before.
        alone: whether a pass of the step under way exchanges nothing.
    """

    __slots__ = ("_group", "_launched", "_played", "alone", "usual")

    def __init__(self, group: SwitchGroup) -> None:
        self._group = group
        self._played, self.usual, self._launched, self.alone = "", FORWARD + BACKWARD, 0, False

    @property
    def played(self) -> str:
        """Those of the step under way."""
        if self._played and self._played[-1] == FORWARD and self._group.launches > self._launched:
            self._played += BACKWARD
        return self._played

    def forward(self, before: str, exchanges: bool) -> None:
        """A forward pass has been made; `before` are those before it."""
        if exchanges:
            self._played = before + FORWARD
        else:
            self.alone |= torch.is_grad_enabled()
        self._launched = self._group.launches

    def stepped(self) -> None:
        """The step is over."""
        self.usual, self._played, self.alone = self.played or self.usual, "", False


class Attended(DistributedDataParallel):
    """A DistributedDataParallel that follows which passes a step has, and makes them with nothing.

    What it contributes is -0.0, which changes no bit of a sum, and is left over only where nobody contributes more.
    """

    # Torch reads these several times a step: past what `wrapper_class` and `Module` have put in their places.
    require_backward_grad_sync = True
    __getattr__ = nn.Module.__getattr__

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.__dict__["module"] = self.module
        self._made_for, group = trained(self.module), self.process_group
        assert isinstance(group, SwitchGroup), "it exchanges on a group of ours"
        self._begin_on(group)

    def _begin_on(self, group: SwitchGroup) -> None:
        self.passes = StepPasses(group)
        # An array of numpy's over a gradient has its address.
        group.lends &= not self.gradient_as_bucket_view

    def move(self, group: SwitchGroup) -> None:
        """Exchange on another group from the next step on, in the same buckets.

        torch lays them out anew after the first step, and the order in which members are added up follows from that.
        """
        self.process_group, self.require_forward_param_sync = group, True
        self.reducer._update_process_group(group)
        self._begin_on(group)

    @property
    def fits(self) -> bool:
        """Whether what it exchanges is what is trained now, and no backward pass was broken off."""
        if [*map(id, trained(self.module))] != [*map(id, self._made_for)]:
            return False
        try:
            self._check_reducer_finalized()  # type: ignore[no-untyped-call]
        except RuntimeError:
            return False
        return True

    @property
    def state(self) -> int:
        """What differs between members of which one has made a step more."""
        return int(self._has_rebuilt_buckets)

    @property
    def why_not(self) -> str:
        """Why the rest of the step's exchange cannot be made without the script; empty if it can."""
        if any(isinstance(module, nn.SyncBatchNorm) for module in self.modules()):
            return WHY_NOT_INNER
        return "" if self.passes.usual.startswith(self.passes.played) else WHY_NOT_OTHER

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        passes = self.passes
        before = passes.played
        made = run_torchs(self, *inputs, **kwargs)
        passes.forward(before, self.require_backward_grad_sync and torch.is_grad_enabled())
        return made

    def attend(self) -> None:
        """Make the passes that the step before had and this one has not yet."""
        roots: list[Tensor] = []
        self.require_backward_grad_sync = True  # which the script's forward pass would have said
        with torch.enable_grad():
            for kind in self.passes.usual.removeprefix(self.passes.played):
                if kind == FORWARD:
                    roots = self._pass_nothing()
                else:
                    backward(roots or self._pass_nothing(again=True))
                    roots = []

    def _pass_nothing(self, again: bool = False) -> list[Tensor]:
        """A forward pass without the model; `again` after one of the script, whose buffers are exchanged."""
        if again:
            self.require_forward_param_sync = False
        self.__dict__["_run_ddp_forward"] = self._nothing  # by which torch runs the model
        try:
            return list(run_torchs(self, torch.zeros(1)))
        finally:
            del self.__dict__["_run_ddp_forward"]

    def _nothing(self, *inputs: Any) -> list[Tensor]:
        # A parameter without a gradient anywhere keeps none if torch looks for those that are unused. Those of a pass
        # under no_sync it takes for used, and then each needs a gradient.
        few = self.find_unused_parameters and not self.passes.alone
        used = trained(self.module)[-1 if few else 0 :]
        sparse = {each.weight for each in self.module.modules() if getattr(each, "sparse", False)}
        return [nothing_of_rows(p) if p in sparse else p.sum() * -0.0 for p in used]


def reduce_next(ddp: DistributedDataParallel | None, wanted: bool) -> None:
    # Whether its next backward pass ends in the exchange; only told when that changes, as `Module` sets slowly.
    if ddp is not None and ddp.require_backward_grad_sync is not wanted:
        ddp.require_backward_grad_sync = wanted


def trained(module: nn.Module) -> list[nn.Parameter]:
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def agree_on(group: SwitchGroup, known: int) -> tuple[bool, int]:
    """Whether all members know the same, and something; if not, a number that is new to all of them.

    Args:
        group: of the members, which all call this.
        known: below 2^49; 0 for nothing.
    """
    said = torch.tensor([known, -known, secrets.randbits(48)], dtype=torch.float64)
    if group.generation is not None and group.generation.size > 1:
        try:
            all_reduce(group.generation, said, ReduceOp.MAX)
        except GroupError:  # which `failure` tells
            return False, 0
    most, least, number = said.tolist()
    return known != 0 and most == -least, int(number)


def nothing_of_rows(weight: Tensor) -> Tensor:
    """Whose gradient is sparse, as an embedding's, and has no row."""
    rows = torch.zeros(0, dtype=torch.long, device=weight.device)
    return nn.functional.embedding(rows, weight, sparse=True).sum()


def attend(models: Sequence[Attended]) -> str:
    """Take part in what is left of the exchange of a step; else why that cannot be.

    What some backward pass of the step has begun is left alone where there are several models.
    """
    if len(models) > 1:
        return "" if any(BACKWARD in model.passes.played for model in models) else WHY_NOT_SEVERAL
    for model in models:
        if model.passes.played == model.passes.usual:
            return ""
        if model.why_not:
            return model.why_not
        model.attend()
    return ""


def is_nothing(gradients: Sequence[Tensor | None]) -> bool:
    """Whether these are what all ranks have contributed nothing to.

    >>> is_nothing([torch.tensor([-0.0]), None]), is_nothing([torch.tensor([0.0])])
    (True, False)
    """
    dense = [each.coalesce().values() if each.is_sparse else each for each in gradients if each is not None]
    return all(bool(((each == 0) & torch.signbit(each)).all()) for each in dense)
