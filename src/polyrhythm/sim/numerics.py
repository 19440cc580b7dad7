"""What happens to the parameters in a simulated run: the seam between virtual time and real gradients.

The engine owns time, the ledger and the workload; it tells a `Numerics` which step reads, arrives, is combined or is
void, in order of virtual time. `TimingOnly` computes nothing, `polyrhythm.sim.gradients` trains a real model.
"""

from typing import Any, NamedTuple, Protocol

from polyrhythm.core import Settings, Sync, Ticket
from polyrhythm.core.shards import Shards
from polyrhythm.core.workload import SampleRange
from polyrhythm.telemetry import RunResult
from polyrhythm.training.compression import NOTHING as NO_COMPRESSION
from polyrhythm.training.compression import Compression


class StepResult(NamedTuple):
    """Scalars of one completed step; None where nothing was computed."""

    loss: float | None = None
    grad_sq_norm: float | None = None


class Evaluation(NamedTuple):
    """Quality on the test set, and that of one replica where that says something else."""

    accuracy: float
    loss: float
    replica_accuracy: float | None = None


class Numerics(Protocol):
    """Parameters, replicas and gradients of a simulated job."""

    @property
    def train_samples(self) -> int | None:
        """Samples of the training set; None if there is no data."""

    @property
    def shards(self) -> Shards | None:
        """Who reads what; None if all read from one order."""

    @property
    def injected_bytes(self) -> float:
        """Bytes that a worker which shares samples sends in a step; 0 without data injection."""

    @property
    def compression(self) -> Compression:
        """What contributions travel as."""

    def start(self, ticket: Ticket, sample_range: SampleRange, settings: Settings | None) -> None:
        """A step begins: it reads the global parameters now, or goes on with its worker's replica."""

    def report(self, ticket: Ticket) -> StepResult:
        """The step is complete: its gradient exists, or its replica has moved."""

    def sync(self, decision: Sync, tickets: list[Ticket]) -> None:
        """Combine: `tickets` are the gradients to take, in the order of the decision's workers; none of replicas."""

    def void(self, tickets: list[Ticket]) -> None:
        """These steps or gradients are dropped and will not be named again."""

    def leave(self, worker: int) -> None:
        """Forget the worker and its replica; not called for one that has finished, whose replica counts to the end."""

    def keep(self) -> Any:
        """What has been learned, while nobody has a step under way."""

    def go_back(self, kept: Any) -> None:
        """Only that has been learned; nobody has a step under way."""

    def evaluate(self) -> Evaluation | None:
        """Quality now, of the global parameters or of the average of the live replicas; None if there is no model.

        Raises:
            DivergedError: when the parameters or the loss are no longer finite.
        """

    def probe(self) -> float | None:
        """Mean loss of the global parameters on the probe batch; None if there is no model."""

    def finish(self, result: RunResult) -> None:
        """The run is over: enter what only the numerics know."""


NOTHING = StepResult()


class TimingOnly:
    """No model: every call is free."""

    train_samples: int | None = None
    shards: Shards | None = None
    injected_bytes = 0.0
    compression = NO_COMPRESSION

    def start(self, ticket: Ticket, sample_range: SampleRange, settings: Settings | None) -> None:
        pass

    def report(self, ticket: Ticket) -> StepResult:
        return NOTHING

    def sync(self, decision: Sync, tickets: list[Ticket]) -> None:
        pass

    def void(self, tickets: list[Ticket]) -> None:
        pass

    def leave(self, worker: int) -> None:
        pass

    def keep(self) -> None:
        pass

    def go_back(self, kept: Any) -> None:
        pass

    def evaluate(self) -> None:
        return

    def probe(self) -> None:
        return

    def finish(self, result: RunResult) -> None:
        pass
