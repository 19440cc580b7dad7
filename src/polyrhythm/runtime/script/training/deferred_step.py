"""Steps that a script makes too early for the job."""

from torch import Tensor

from polyrhythm.runtime.worker.replica import ScriptReplica


class DeferredStep:
    """A step that a script makes at the end of its own epoch, in the middle of one of the job's, is made later.

    A worker of an asynchronous policy does not stop after as many mini-batches as the script's loader has. A script
    that accumulates gradients and steps once more with the rest of its epoch steps too early then: what it has is added
    to the gradients of the mini-batches that still belong to the step.

    Args:
        replica: the script's model and optimizer.

    Example:
        >>> import torch
        >>> weight = torch.nn.Linear(1, 1, bias=False)
        >>> deferred = DeferredStep(ScriptReplica(weight, torch.optim.SGD(weight.parameters(), lr=1.0)))
        >>> weight.weight.grad = torch.ones(1, 1)
        >>> deferred.put_off()
        >>> weight.weight.grad is None
        True
        >>> deferred.backward(together=False)
        >>> weight.weight.grad = torch.ones(1, 1)
        >>> deferred.complete()
        >>> weight.weight.grad.item()
        2.0
    """

    def __init__(self, replica: ScriptReplica) -> None:
        self._replica = replica
        self._kept: list[Tensor | None] = []
        self.under_way = self.fresh = False
        """Whether a step that was put off is under way, and whether no backward pass has begun since."""

    def put_off(self) -> None:
        """The script's optimizer is about to step: keep its gradients, and keep it from them."""
        self._kept = [None if p.grad is None else p.grad.clone() for p in self._replica.parameters]
        self.under_way = self.fresh = True
        self._replica.hide_gradients()

    def stepped(self) -> None:
        """The script's optimizer has done nothing."""
        self.under_way = False
        self._replica.show_gradients()

    def backward(self, together: bool) -> None:
        """A backward pass begins. If the script has not dropped the gradients until now, they need not be kept for it.

        If workers step together the pass may end in their exchange, which takes what was kept along.
        """
        if not self.fresh:
            return
        self.fresh = False
        if any(p.grad is not None and p.grad.any() for p in self._replica.parameters):
            self._kept = []
        elif together:
            self.complete()

    def complete(self) -> None:
        """Add what was kept to the gradients at hand."""
        if not self._kept:
            return
        kept, self._kept = self._kept, []
        for parameter, gradient in zip(self._replica.parameters, kept, strict=False):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
