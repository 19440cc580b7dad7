"""A worker's side under an arbitrated policy on gradients: it pushes them, and the servers make the steps."""

from polyrhythm.runtime.wire.protocol import Go, Pushed
from polyrhythm.runtime.worker.context import WorkerContext
from polyrhythm.runtime.worker.granted import Granted


class ParameterServerMode(Granted):
    """Every step starts from the servers' parameters and ends in a push.

    Args:
        context: the worker's.
        swaps: whether the parameters of the next step come while the gradients of this one go. They are without them,
            and the coordinator is told which version they are.
    """

    def __init__(self, context: WorkerContext, swaps: bool = False) -> None:
        super().__init__(context)
        self._swaps = swaps
        self._swapped: int | None = None
        self._pulled_s = 0.0

    def before_step(self, samples: int) -> None:
        """Send the gradients, unless the step was cancelled meanwhile, and keep the script's optimizer from them."""
        self._push(samples)
        self._context.hide_gradients()

    def after_step(self, samples: int) -> None:
        """Wait for the next `Go`."""
        self._context.wait()

    def end_epoch(self, version: int) -> None:
        """Take over the final parameters."""
        context = self._context
        self._swapped = None
        if version > context.version:
            context.client.pull(version)
            context.version = version

    def _push(self, samples: int) -> None:
        context = self._context
        while self._go is not None and (message := context.client.poll()) is not None:
            context.follow(message)
        go, self._go = self._go, None
        if go is None:  # cancelled; the Go behind it waits until the step is over
            context.void = True
            return
        start = context.clock()
        self._send(go.number)
        transfer_s = self._pulled_s + context.clock() - start
        settings, read = context.replica.settings(), context.version if self._swaps else None
        context.client.send(
            Pushed(go.number, samples, context.computed_s, transfer_s, context.loss, settings=settings, read=read)
        )

    def _send(self, number: int) -> None:
        client = self._context.client
        if self._swaps:
            self._swapped = client.swap(number)
        else:
            client.push(number)

    def _start_step(self, go: Go) -> None:
        """Read the parameters that the step is to start from."""
        context = self._context
        start = context.clock()
        if self._swapped is not None:
            context.client.take_swapped()
            context.version, self._swapped = self._swapped, None
        elif go.version > context.version:
            context.client.pull(go.version)
            context.version = go.version
        self._pulled_s = context.clock() - start
        context.tally.transferred_s += self._pulled_s
