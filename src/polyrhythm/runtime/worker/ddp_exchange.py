"""How a worker's model takes part in synchronous mode: DistributedDataParallel behind the model's own forward, and
averages.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.distributed_c10d import Store

from polyrhythm.core import Outer
from polyrhythm.errors import UsageError
from polyrhythm.runtime.collectives.attending.attendance import BACKWARD, Attended, attend, is_nothing, reduce_next
from polyrhythm.runtime.collectives.attending.scaling import follow
from polyrhythm.runtime.collectives.compressed import mean_compressed_gradients
from polyrhythm.runtime.collectives.mean_state import mean_state
from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.model_averaging import Averager, ContributionWeight
from polyrhythm.runtime.collectives.ops import LaunchSum, broadcast, launch_sum, mean_gradients
from polyrhythm.runtime.collectives.replica_check import check_equal
from polyrhythm.runtime.collectives.state_transfer import hand_over_states, hand_over_tensors
from polyrhythm.runtime.collectives.switchable_group import SwitchGroup, make_group
from polyrhythm.runtime.wire.protocol import MeasuredStep
from polyrhythm.runtime.wire.segments import packed
from polyrhythm.runtime.worker.replica import ScriptReplica
from polyrhythm.training.codecs import Compressor
from polyrhythm.training.compiled import hide_from_compiler
from polyrhythm.training.compression import NOTHING, Compression
from polyrhythm.training.config import StateTreatment
from polyrhythm.training.optimizer import OptimizerState


class Core(nn.Module):
    """What DistributedDataParallel wraps: the model with its own forward, whatever stands in its place now."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._forward = model.forward

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._forward(*args, **kwargs)


class ExchangedForward:
    """In the place of the model's own forward; a copy of the model, in memory or in a file, has its own."""

    def __init__(self, model: nn.Module, call: Callable[..., Any]) -> None:
        self._model, self._call = model, call
        self.__wrapped__ = model.forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._call(*args, **kwargs)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self._model, "forward")  # the copy's, which has nothing in its place yet


class DDPExchange:
    """The model's side of collectives.

    In a synchronous phase the model's forward runs through a DistributedDataParallel on the switchable group. A session
    makes it anew for each phase: all members then start without buckets, so their layouts cannot differ. Evaluation,
    and forwards without gradients, never communicate; gradients that come of a model in evaluation mode, or past its
    forward, are exchanged before the step.

    Args:
        replica: the script's model and optimizer.
        worker: rank in the job.
        timeout: limit of one collective.
        compression: what gradients and replicas travel as. Compressed gradients are exchanged after the backward pass.
    """

    def __init__(
        self, replica: ScriptReplica, worker: int, timeout: timedelta, compression: Compression = NOTHING
    ) -> None:
        hide_from_compiler()
        self._replica = replica
        self._worker = worker
        self._timeout = timeout
        self._model = replica.model
        self._core, self._own_forward = Core(replica.model), replica.model.__dict__.get("forward")
        self._ddp: Attended | None = None
        self._averager: Averager | None = None
        self.group: SwitchGroup | None = None
        self.reduces = self.by_hand = self._passed_by = self.ahead = False
        self._gradients, self._deltas = (Compressor.of(compression, end + 1, worker) for end in range(2))
        self._cut: tuple[str, str, int] = ("", "", 0)
        self._completed = 0
        self.out = False
        """Whether this worker has taken part in all that it will; then others may still wait for what it has sent."""
        self.state_treatment: StateTreatment = "keep"
        self.outer = Outer()
        self.launch: LaunchSum = launch_sum
        self.beside: Callable[[], object] = bool
        """Done while a step waits for its last collective."""
        self._attended: Sequence[Attended] = ()
        """What exchanges gradients with the backward pass."""

    def meet(self, store: Store, members: Sequence[int], name: str, gathers: bool = False) -> None:
        """Form the group of a new phase; see `SwitchGroup.set_generation`.

        Raises:
            GroupError: if not all members arrive, or the phase is cut meanwhile.
        """
        self._ddp, self._attended = None, ()
        if self.group is None:
            self.group = make_group(self._timeout)
        self.group.beside = self.beside
        self.group.bind(store, self._worker)
        self._completed, self.out = 0, False
        self._end_if_cut()
        self.group.set_generation(tuple(members), name, gathers=gathers)

    def cut(self, name: str, reason: str, after: int = 0) -> None:
        """From any thread: end the collectives of the phase of that name, and the forming of its group.

        Those of the first `after` steps in synchronous mode come to their own end.
        """
        self._cut = (name, reason, after)
        self._end_if_cut()

    def stop_building(self, name: str, reason: str) -> None:
        """From any thread: nobody meets in the phase of that name any more; who has met goes on."""
        if self.group is not None:
            self.group.stop_building(reason, name)

    def complete(self, steps: int) -> None:
        for model in self._attended:
            model.passes.stepped()
        if self.group is not None:
            self.group.step()
        self.ahead = False
        self._completed = steps  # before the look at the cut, as `cut` notes it before its look at the steps
        if self._cut[0]:
            self._end_if_cut()

    def part(self) -> None:
        self.reduces, self._ddp, self.by_hand, self._attended = False, None, False, ()
        self._run_alone()
        if self.group is not None:
            self.group.set_local()

    def leave(self) -> None:
        """The phase makes its steps without collectives: nothing is kept for the next one."""
        self.part()

    def abandon(self, reason: str) -> None:
        """Leave in the middle: the other members must not wait for this one."""
        if self.group is not None:
            self.group.abort(reason)

    def close(self) -> None:
        """Give the model its own forward back, and torch its state before, if this session has made the default group.

        torch waits for its groups in destructors, so they are dropped while everything else still stands.
        """
        self.part()
        self._averager = None
        if self.group is not None and self.group is dist.group.WORLD:
            dist.destroy_process_group()
        self.group = None

    def reduce_gradients(self, wanted: bool) -> None:
        """Whether backward passes from now on end in the mean gradient of all members, if nothing is compressed."""
        self.by_hand = wanted and self._gradients is not None
        wanted = wanted and not self.by_hand
        self.reduces = wanted
        if wanted and self._ddp is None:
            self._ddp = Attended(self._core, process_group=self.group, init_sync=False)
            self._attended = (self._ddp,)
        if wanted:
            self._model.forward = ExchangedForward(self._model, self._through_ddp)
        else:
            self._run_alone()

    def reduce_now(self, wanted: bool) -> None:
        """Whether the next backward pass ends in the exchange; otherwise its gradients wait for one that does."""
        reduce_next(self._ddp, wanted)

    def meanwhile(self, call: Callable[[], None]) -> bool:
        """Have this done while the next backward pass waits for its exchange; whether there is to be one.

        It may end without, on a GPU or if the exchange fails.
        """
        if self.group is None or not self.reduces:
            return False
        self.group.meanwhile = call
        return True

    @property
    def has_mean(self) -> bool:
        """Whether the gradients of the step under way are everyone's mean already."""
        return self.ahead or (self.reduces and any(BACKWARD in model.passes.played for model in self._attended))

    @property
    def generation(self) -> Generation:
        generation = self.group.generation if self.group is not None else None
        assert generation is not None, "members meet before they exchange anything"
        return generation

    @property
    def averager(self) -> Averager:
        if self._averager is None:
            self._averager = self._make_averager(self._deltas)
        return self._averager

    def _make_averager(self, compressor: Compressor | None) -> Averager:
        replica = self._replica
        return Averager(replica.model, compressor, self.launch, replica.names, replica.moving)

    def combine(self, weight: ContributionWeight, step: int) -> None:
        """Start an exchange of replicas after step `step`; the averager's `merge` completes it.

        What becomes of the optimizers' states happens at once, also where the result is taken over later.

        Raises:
            GroupError: when a member is lost.
        """
        sync = weight.sync
        if sync.what == "deltas" and sync.outer is None:
            weight = ContributionWeight(replace(sync, outer=self.outer), weight.share, weight.adopts)
        self.averager.combine(self.generation, weight, step)
        if self.state_treatment == "average":
            state = self._mean_state(weight.share, self.generation.members.index(sync.workers[0]))
            if weight.adopts:
                self._replica.import_state(state, grouped=False)
        elif self.state_treatment == "reset" and weight.adopts:
            self._replica.drop_state()

    def exchange_records(self, own: MeasuredStep) -> bytes:
        """What the members have measured in a step, packed and in their order.

        Raises:
            GroupError: when a member is lost.
        """
        return b"".join(self.generation.gather(packed(own)))

    def average_gradients(self, weight: ContributionWeight) -> None:
        """Give the optimizer's next step the mean gradient of those who contribute.

        Raises:
            GroupError: when a member is lost; the gradients are unchanged then.
        """
        parameters = self._replica.parameters
        if self._gradients is None:
            mean_gradients(self.generation, parameters, weight.share, weight.adopts)
            return
        shares = [ContributionWeight.of(weight.sync, member).share for member in self.generation.members]
        mean_compressed_gradients(self.generation, self._gradients, parameters, shares, weight.adopts)

    def awaits_reduction(self) -> bool:
        """Whether gradients are yet to be exchanged in this step: those to compress, or of which DDP saw no pass."""
        if self.reduces:
            self._passed_by = not self.has_mean and self._has_gradients
        return self.by_hand or self._passed_by

    def reduce_by_hand(self) -> None:
        """What DistributedDataParallel does with gradients: their mean, and the first member's buffers.

        Raises:
            GroupError: when a member is lost; the gradients are unchanged then, the buffers undefined.
        """
        size, parameters = self.generation.size, self._replica.parameters
        if self._gradients is None:
            mean_gradients(self.generation, parameters)
        else:
            mean_compressed_gradients(self.generation, self._gradients, parameters, [1.0 / size] * size)
        hand_over_tensors(self.generation, list(self._model.buffers()), 0)

    def attend(self) -> bool:
        """This worker's script makes no step, and has no gradients: take part in what the others do before theirs.

        Whether somebody makes one; then the gradients are those of that step. Where this worker's backward pass has
        exchanged them, what is wrong with them is wrong for all.

        Raises:
            GroupError: when a member is lost.
            UsageError: if it cannot be done without the script.
        """
        if self.by_hand or (self.reduces and self._passed_by):
            self.reduce_by_hand()
            return self._has_gradients
        return self.reduces and self._attend_passes() and follow(self._replica.parameters)

    def _attend_passes(self) -> bool:
        if why := attend(self._attended):
            raise self._refuse(
                f"rank {self._worker} has made no backward pass with its mini-batch of step {self._completed + 1}, in "
                f"which the others wait for it, and it cannot be made up for: {why}; make one with every mini-batch"
            )
        return self._has_gradients and not is_nothing([p.grad for p in self._replica.parameters])

    def _refuse(self, why: str) -> UsageError:
        return UsageError(why)

    @property
    def _has_gradients(self) -> bool:
        return any(parameter.grad is not None for parameter in self._replica.parameters)

    def _run_alone(self) -> None:
        # A compiled module has a forward of its own beside that of its class.
        if self._own_forward is None:
            self._model.__dict__.pop("forward", None)
        else:
            self._model.forward = self._own_forward

    def check_equal(self) -> None:
        """Whether the members have the same parameters.

        Raises:
            ReplicasDifferError: if they do not.
            GroupError: when a member is lost.
        """
        check_equal(self.generation, self._replica.parameters, self._replica.optimizer)

    def agree(self, members: Sequence[int], contributors: Sequence[int]) -> None:
        """Give all members the mean of the contributors' parameters, buffers and optimizer state.

        Of an outer optimizer they take over the velocity of the first contributor.

        Raises:
            GroupError: when a member is lost; then nothing has changed here, so that the others can begin anew.
        """
        share = 1.0 / len(contributors) if self._worker in contributors else 0.0
        source = list(members).index(contributors[0])
        if self._replica.unservable:
            self._take_state_of(source)
        else:
            state = self._mean_state(share, source)
        velocity = self._shared_velocity(source)
        self._make_averager(None).mean(self.generation, share)
        if not self._replica.unservable:
            self._replica.import_state(state, grouped=False)
        if velocity is not None or self._averager is not None:
            self.averager.velocity = velocity

    def _take_state_of(self, source: int) -> None:
        """What cannot be averaged is that of one member."""
        replica = self._replica
        own = [replica.optimizer.state.get(p, {}) for p in replica.parameters]
        replica.set_state(hand_over_states(self.generation, own, source))

    def _mean_state(self, share: float, source: int) -> OptimizerState:
        own, kind = self._replica.export_state(grouped=False), self._replica.layout.dtype
        return mean_state(self.generation, own, len(self._replica.parameters), kind, share, source, self.launch)

    def _shared_velocity(self, source: int) -> torch.Tensor | None:
        velocity = self.velocity
        there = torch.tensor([velocity is not None])
        broadcast(self.generation, there, source)
        if not there:
            return None
        size, device, kind = self._replica.layout.size, self._replica.device, self._replica.layout.dtype
        shared = torch.zeros(size, device=device, dtype=kind) if velocity is None else velocity.clone()
        broadcast(self.generation, shared, source)
        return shared

    @property
    def velocity(self) -> torch.Tensor | None:
        """Of the outer optimizer."""
        return self._averager.velocity if self._averager is not None else None

    def forget_velocity(self) -> None:
        """Another policy starts, and with it the outer optimizer anew."""
        if self._averager is not None:
            self._averager.velocity = None

    @property
    def launched_s(self) -> float:
        """When this worker last joined in a collective, on `time.perf_counter`; 0 before the first."""
        return self.group.launched_s if self.group is not None else 0.0

    def common(self, loss: float | None) -> float | None:
        """The loss of this worker, of what its processes have heard."""
        return loss

    def _end_if_cut(self) -> None:
        name, reason, after = self._cut
        if self.group is not None and name and self._completed >= after and not self.out:
            self.group.abort(reason, name)

    @property
    def failure(self) -> str | None:
        return self.group.failure if self.group is not None else None

    def _through_ddp(self, *args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and self._model.training:
            assert self._ddp is not None
            return self._ddp(*args, **kwargs)
        return self._core(*args, **kwargs)
