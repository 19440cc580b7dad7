"""What a script makes and does, handed on to the training that it is in."""

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from polyrhythm.runtime.script.children import Children
from polyrhythm.runtime.script.data.passes import Pass
from polyrhythm.runtime.script.notices import asked_by_us, refuse, tell
from polyrhythm.runtime.script.schedulers import Schedules
from polyrhythm.runtime.script.training.objections import Objections
from polyrhythm.runtime.script.training.script_facts import ScriptFacts
from polyrhythm.runtime.script.training.session import ScriptSession
from polyrhythm.runtime.script.training.session_start import renew
from polyrhythm.runtime.script.training.training import Training
from polyrhythm.runtime.script.training.warm_up import Arguments
from polyrhythm.runtime.script.wrapper import Lane

ZERO = (
    "ZeroRedundancyOptimizer shards the optimizer's state, but a policy needs whole replicas; make the optimizer that "
    "it wraps (optimizer_class) by itself, as in torch.optim.Adam(model.parameters())"
)


class AdaptedScript(ScriptFacts):
    """Follows a script from training to training.

    Args:
        rank: of this worker.
        workers: ranks of the job.
    """

    def __init__(self, rank: int, workers: int) -> None:
        objections = Objections(lambda: self._training.later_apart, lambda: self._training.switched_to)
        schedules = Schedules(
            lambda: self._training.apart,
            lambda: self._training.reached,
            lambda: self._training.together,
            lambda: self._training.batch,
            lambda: self._training.in_loop,
            objections,
        )
        super().__init__(rank, workers, schedules, objections)
        self.children = Children()
        self._training = Training(self, self, self.forward)

    @property
    def session(self) -> ScriptSession | None:
        return self._training.session

    # -- what the script makes -----------------------------------------------------------------------------------------

    def wrapped(self, lane: Lane) -> None:
        self.lanes.append(lane)
        lane.called, lane.returned = self.forward, self.returned
        tell("DistributedDataParallel follows the policy")

    def formed_group(self) -> None:
        self.distributed = True
        self._training.warm_up.seen.run_compiled()

    def compiled(self) -> None:
        """The script has something compiled. One with ranks calls a wrapper, which is seen."""
        self.compiles = True
        if self.session is None and not (self.distributed or self.dormant):
            self._training.warm_up.seen.run_eagerly()

    def made_optimizer(self, optimizer: Optimizer) -> None:
        if asked_by_us():
            return
        if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
            raise refuse(ZERO)
        self.optimizers[optimizer] = None
        if self.session is not None:
            self.session.later.add(optimizer)
        if self._training.draws:
            self._train_again()

    def copied_optimizer(self, optimizer: Optimizer) -> None:
        """It comes of a copy or a file, or has loaded a state; a copy within a training may be one to keep."""
        if asked_by_us() or optimizer in self.optimizers:
            return
        if self.session is None:
            self.optimizers[optimizer] = None
        else:
            self.copied.add(optimizer)

    # -- what the script does ------------------------------------------------------------------------------------------

    def iterate(self, loader: DataLoader[Any]) -> Iterator[Any]:
        if self.dormant or self.aside or loader not in self.loaders or not torch.is_grad_enabled():
            return self.loaders.read(loader)
        if self._training.is_over:
            self._train_again()
        return self._training.read(loader)

    def forward(self, trains: bool, inputs: Any) -> None:
        if not self.dormant:
            self._training.forward(trains, inputs)

    def returned(self) -> None:
        if not self.dormant:
            self._training.returned()

    def backward(self, roots: Iterable[Tensor]) -> None:
        if not self.dormant:
            self._training.backward(roots)

    def differentiated(self) -> None:
        """A backward pass is over."""
        if not self.dormant:
            self._training.differentiated()

    def before_scaler(self, optimizer: Optimizer) -> None:
        self._training.before_scaler(optimizer)

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        return None if self.dormant else self._training.before_step(optimizer, args, kwargs)

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._training.after_step(optimizer)

    def collective(self, name: str, outputs: list[Tensor], source: int | None) -> bool:
        return self._training.collective(name, outputs, source)

    @property
    def aside(self) -> bool:
        return self._training.aside

    def asks_state(self) -> None:
        if self.session is not None and not asked_by_us():
            self._training.asks_state()

    @property
    def is_handed_data(self) -> bool:
        return self._training.is_handed_data

    def pass_epoch_if_awaited(self) -> None:
        self._training.pass_epoch_if_awaited()

    # -- passes (see `PassListener`) -----------------------------------------------------------------------------------

    def before_batch(self, run: Pass) -> None:
        if not self.dormant:
            self._training.before_batch(run)

    def given(self, run: Pass) -> None:
        if not self.dormant:
            self._training.given(run)

    def finished(self, run: Pass) -> None:
        if not self.dormant:
            self._training.finished(run)

    # -- the end of a training -----------------------------------------------------------------------------------------

    def close(self, kind: type[BaseException] | None = None, error: BaseException | None = None) -> None:
        session, self.dormant = self._training.leave(), True
        self.stalls.stop()
        if session is None:
            return
        if error is None:
            self._training.end()
        session.__exit__(kind, error, None)

    def _train_again(self) -> None:
        """The session ends, and the first step of the next training is a warm-up step, too."""
        session = self._training.leave()
        assert session is not None, "it is over"
        self._training.end()
        self.trained_before.update(self._training.warm_up.optimizers)
        session.train_again()
        self.trainings, self.dormant = self.trainings + 1, False  # it is closed with the session's process group
        tell(f"training number {self.trainings + 1} begins, as a job of its own")
        renew(self.lanes, self.optimizers)
        self.schedules.begin_again()
        self.objections.begin_again()
        self.loaders.begin_again()
        self._training = Training(self, self, self.forward)
        if self.compiles:
            self.compiled()

    def leave_alone(self) -> None:
        """It opens a session itself; what it calls is not watched, nor held, any more."""
        self.dormant = self.follows = True
        self._training.warm_up.seen.close(compiled=False)

    def check_end(self) -> None:
        """The script has come to its end by itself."""
        seen = self._training.warm_up.seen
        if not self.dormant or self.follows:
            self.children.check(trained=self.follows or bool(seen.stepped_at))
        if not self.follows or not (self.dormant or self.session is not None):
            seen.check_end(self.follows)
