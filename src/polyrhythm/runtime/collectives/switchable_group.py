"""The switchable process group that DistributedDataParallel and the script see as an ordinary one.

It delegates to the group of the current generation, or is the identity while workers go their own ways. A
group's failure never comes out of a collective: `SwitchGroup.failure` says what happened, every later collective of
the generation returns at once, and the owner drops the step and sets the next generation.

    dist.init_process_group("polyrhythm")                 # or dist.new_group(backend="polyrhythm")
    model = DistributedDataParallel(model)                # unchanged
    group = dist.group.WORLD
    group.set_local()                                     # from here on every collective is the identity
    group.set_generation([0, 2, 3], prefix="generation-7")          # synchronous mode among these, wherever they were
"""

# torch's stubs give every collective several signatures; it calls only those here.
# mypy: disable-error-code="override,assignment"

import sys
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeAlias

import torch
import torch.distributed as dist
from torch.autograd.graph import _engine_run_backward
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import Store

from polyrhythm.errors import UsageError
from polyrhythm.runtime.collectives.group_health import first_line
from polyrhythm.runtime.collectives.membership import CONNECT_TIMEOUT, DEFAULT_TIMEOUT, Building, Generation
from polyrhythm.runtime.collectives.nonraising_work import FinishedWork, guard, wait_for
from polyrhythm.runtime.collectives.shared.exchanges import Offer

BACKEND = "polyrhythm"

BETWEEN_TWO = ("send", "recv", "recv_anysource")
"""These end with what the other one does, who may want to do something else before; gloo's end with a limit, too."""

ENGINE: Final = _engine_run_backward.__code__
"""From where torch's engine is called, and calls."""

Tensors: TypeAlias = list[torch.Tensor]


class SwitchGroup(dist.ProcessGroup):
    """A process group whose members change while others hold on to it.

    Args:
        store: where generations meet.
        worker: this process's number in the job; it keeps it for life.
        members: who belongs to the job at first.
        timeout: limit of one collective.

    Attributes:
        launches: collectives so far.
        launched_s: when the last one was launched, on `time.perf_counter`.
        meanwhile: done once, while the next collective that is waited for here is under way.
        beside: done each time.
        lends: whether buckets may be lent, see `SharedBuffers.add_up`; not those of which the script has views.

    torch reads the size in two ways. ``getSize()`` and ``getRank()``, which DistributedDataParallel divides gradients
    by, are those of the current generation, and 1 and 0 in a local phase. ``size()`` and ``rank()``, which the script
    sees as ``dist.get_world_size()``, are those of the membership, whatever the phase.
    """

    def __init__(self, store: Store, worker: int, members: Sequence[int], timeout: timedelta = DEFAULT_TIMEOUT) -> None:
        super().__init__(worker, len(members))  # type: ignore[call-arg]
        self.store, self.worker, self.timeout = store, worker, timeout
        self.members = tuple(members)
        self.generation: Generation | None = None
        self._building: Building | None = None
        self._aborted = "", ""
        self.launched_s, self.launches = 0.0, 0
        self.meanwhile: Callable[[], None] | None = None
        self.beside: Callable[[], object] = bool
        self.lends = True
        self._began = self._last = 0
        """Collectives launched before this step, and by its likely end."""
        self._name = BACKEND

    def bind(self, store: Store, worker: int) -> None:
        """Take part in another job's generations: what a joiner does, whose group was made by itself alone."""
        self.store, self.worker = store, worker

    def set_generation(
        self,
        members: Sequence[int],
        prefix: str,
        timeout: timedelta | None = None,
        connect_timeout: timedelta = CONNECT_TIMEOUT,
        gathers: bool = False,
    ) -> Generation:
        """Run collectives among `members` from now on; all of them call this with the same arguments.

        `gathers` says that they will `Generation.gather`.

        Raises:
            GroupError: if they do not all arrive, or the generation is aborted before; the group is local then.
        """
        self.set_local(members)
        limits = timeout or self.timeout, connect_timeout
        make = partial(Generation, self.store, prefix, members, self.worker, *limits, gathers)
        self._building = Building(prefix, members, make)
        self._end_if_aborted()
        try:
            self.generation = self._building.wait()
        finally:
            self._building = None
        self._end_if_aborted()
        return self.generation

    def set_local(self, members: Sequence[int] | None = None) -> None:
        """Let every collective be the identity from now on; optionally with another membership."""
        if self.generation:
            self.generation.close()
        self.generation = None
        if members is not None:
            self.members = tuple(members)

    @property
    def failure(self) -> str | None:
        generation = self.generation
        return generation.health.failure if generation is not None else None

    def abort(self, reason: str = "aborted", prefix: str | None = None) -> None:
        """Give up the generation, from any thread: pending collectives return at once, and the step's collective has
        failed.

        Args:
            reason: what `failure` will say.
            prefix: which generation, also if it is yet to be built; None is the current one. Who hears of a loss late
                must not end the next one.
        """
        if prefix is None:
            prefix = self.generation.prefix if self.generation else ""
        self._aborted = prefix, reason
        self._end_if_aborted()

    def stop_building(self, reason: str, prefix: str) -> None:
        """From any thread: give up a generation that does not stand yet."""
        building = self._building
        if building is not None and building.prefix == prefix:
            building.abort(reason)

    def _end_if_aborted(self) -> None:
        # Called after what it looks at has changed, in each of two threads: one of them sees both changes.
        prefix, reason = self._aborted
        for one in (self._building, self.generation):
            if one is not None and one.prefix == prefix:
                one.abort(reason)

    def step(self) -> None:
        """A step is over. The next is likely to launch as many collectives, and has nothing to do after the last."""
        self._began, self._last = self.launches, 2 * self.launches - self._began

    def shutdown(self) -> None:
        self.set_local()

    def getRank(self) -> int:  # noqa: N802 (the name that C++ calls)
        return self.generation.rank if self.generation else 0

    def getSize(self) -> int:  # noqa: N802
        return self.generation.size if self.generation else 1

    def rank(self) -> int:
        return self.members.index(self.worker) if self.worker in self.members else 0

    def size(self) -> int:
        return len(self.members)

    def getBackendName(self) -> str:  # noqa: N802
        return BACKEND

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    # Collectives, under the names and with the arguments that torch uses. Each names the tensors that it writes into
    # and how they are filled without other members: as if all had contributed the same.

    def allreduce(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        # What torch's engine sums up by itself is a bucket of DistributedDataParallel, which nobody else has.
        caller = sys._getframe().f_back
        bucket = caller is None or caller.f_code is ENGINE
        return self._run("allreduce", tensors, None, tensors, opts=opts, lends=self.lends and bucket)

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        return self._run("allreduce_coalesced", tensors, None, tensors, opts=opts)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        return self._run("broadcast", tensors, None, tensors, opts=opts)

    def reduce(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        return self._run("reduce", tensors, None, tensors, opts=opts)

    def allgather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        own = _plain(inputs)
        return self._run("allgather", outputs[0], lambda: _repeat(own[0], outputs[0]), outputs, own, opts=opts)

    def _allgather_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> dist.Work:
        def fill() -> None:
            if tensor.numel():
                _repeat(tensor.view(-1), list(output.view(-1, tensor.numel())))

        return self._run("_allgather_base", [output], fill, output, *_plain([tensor]), opts=opts)

    all_gather_single = _allgather_base

    def reduce_scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> dist.Work:
        own = inputs[0][self.rank()]
        given = [_plain(inputs[0])]
        return self._run("reduce_scatter", outputs, lambda: _repeat(own, outputs), outputs, given, opts=opts)

    def _reduce_scatter_base(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> dist.Work:
        def fill() -> None:
            if output.numel():
                _repeat(tensor.view(-1, output.numel())[self.rank()], [output.view(-1)])

        return self._run("_reduce_scatter_base", [output], fill, output, *_plain([tensor]), opts=opts)

    reduce_scatter_single = _reduce_scatter_base

    def gather(self, outputs: list[Tensors], inputs: Tensors, opts: Any = None) -> dist.Work:
        targets = outputs[0] if outputs else []
        own = _plain(inputs)
        return self._run("gather", targets or own, lambda: _repeat(own[0], targets), outputs, own, opts=opts)

    def scatter(self, outputs: Tensors, inputs: list[Tensors], opts: Any = None) -> dist.Work:
        own = inputs[0][self.rank()] if inputs else outputs[0]
        given = [_plain(each) for each in inputs]
        return self._run("scatter", outputs, lambda: _repeat(own, outputs), outputs, given, opts=opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> dist.Work:
        own = inputs[self.rank()]
        return self._run("alltoall", outputs, lambda: _repeat(own, outputs), outputs, _plain(inputs), opts=opts)

    def alltoall_base(
        self, output: torch.Tensor, tensor: torch.Tensor, outputs: list[int], inputs: list[int], opts: Any = None
    ) -> dist.Work:
        fill = lambda: _repeat(tensor, [output])  # noqa: E731
        return self._run("alltoall_base", [output], fill, output, *_plain([tensor]), outputs, inputs, opts=opts)

    all_to_all_single = alltoall_base

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier: who does not come is known to the job."""
        self.barrier().wait()

    def barrier(self, opts: Any = None) -> dist.Work:
        return self._run("barrier", [torch.empty(0)], None, opts=opts)

    def send(self, tensors: Tensors, target: int, tag: int) -> dist.Work:
        return self._run("send", tensors, _nobody, _plain(tensors), target, tag, opts=None)

    def recv(self, tensors: Tensors, source: int, tag: int) -> dist.Work:
        return self._run("recv", tensors, _nobody, tensors, source, tag, opts=None)

    def recv_anysource(self, tensors: Tensors, tag: int) -> dist.Work:
        return self._run("recv_anysource", tensors, _nobody, tensors, tag, opts=None)

    def _run(
        self,
        name: str,
        outputs: Tensors,
        fill: Callable[[], None] | None,
        *args: Any,
        opts: Any,
        lends: bool = False,
    ) -> dist.Work:
        self.launched_s = time.perf_counter()
        self.launches += 1
        generation, on_gpu = self.generation, outputs[0].is_cuda
        if generation is None or generation.health.failure is not None:
            if fill:
                fill()
            return FinishedWork(outputs)
        if generation.shared and (offer := generation.shared.offer(name, outputs, opts, lends)):
            return self._exchange(offer)
        try:
            work = getattr(generation.backend(on_gpu), name)(*(args if opts is None else (*args, opts)))
        except RuntimeError as error:
            self._not_launched(error)
            generation.health.fail(first_line(error))
            return FinishedWork(outputs)
        if self.launches == self._last and not on_gpu and name not in BETWEEN_TWO:
            self._do_meanwhile()
            return wait_for(work, generation.health, outputs)
        return guard(work, generation.health, outputs)

    def _not_launched(self, error: RuntimeError) -> None:
        """The backend has refused a collective of this member, or could not begin it."""

    def _exchange(self, offer: Offer) -> dist.Work:
        if self.launches != self._last:
            return offer.start()
        offer.run_now(self._do_meanwhile)
        return FinishedWork(offer.tensors)

    def _do_meanwhile(self) -> None:
        """What has waited for a short time in which this worker waits for others."""
        if self.meanwhile is not None:
            call, self.meanwhile = self.meanwhile, None
            call()
        self.beside()


def register() -> None:
    dist.Backend.register_backend(BACKEND, create, devices=["cpu", "cuda"])


def create(store: Store, rank: int, size: int, timeout: timedelta) -> SwitchGroup:
    """A group of all ranks, in its first generation: what `torch.distributed.new_group` calls."""
    group = SwitchGroup(store, rank, range(size), timeout)
    group.set_generation(range(size), "generation-0", connect_timeout=timeout)
    return group


def _repeat(source: torch.Tensor, targets: Tensors) -> None:
    with torch.no_grad():
        for target in targets:
            target.copy_(source)


def _plain(inputs: Tensors) -> Tensors:
    """Numbers as they are: a backend reads the memory, which has others if a tensor is a conjugate or negated."""
    return [tensor.resolve_conj().resolve_neg() for tensor in inputs]


def _nobody() -> None:
    raise UsageError(
        "send and recv need the other worker, but workers go their own ways now; use them in synchronous mode"
    )


register()


def make_group(timeout: timedelta) -> SwitchGroup:
    """A switchable group that torch knows.

    A script that has initialised torch.distributed keeps its default group and gets this one beside it; otherwise this
    one becomes the default. Either is made by each worker alone: others may be gone by now, or yet to come.
    """
    if dist.is_initialized():
        alone = [dist.get_rank()]
        group = dist.new_group(alone, backend=BACKEND, timeout=timeout, use_local_synchronization=True)
    else:
        shown = sys.excepthook
        dist.init_process_group(BACKEND, store=HashStore(), rank=0, world_size=1, timeout=timeout)
        sys.excepthook = shown  # torch's calls every rank rank 0, which each of them is in this group
        group = dist.group.WORLD
    assert isinstance(group, SwitchGroup), f"torch made a {type(group).__name__} for the backend {BACKEND}"
    return group
