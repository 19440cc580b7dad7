"""What watches a rank from inside: it reads clocks where the script loads, computes and meets, and changes nothing.

torch's reducer notes for each gradient how long after the forward pass it was ready; the last one is where the rank
arrives at the exchange. Everything else is timed around the call. Nothing here touches a tensor, and what is called
gets the arguments that it was called with. Every line here costs a watched step some microseconds.
"""

import functools
import gc
import os
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from polyrhythm.doctor.watch.device import DeviceStamps
from polyrhythm.doctor.watch.links import LinkWatcher
from polyrhythm.doctor.watch.ring import RingWriter

FOLDER = "POLYRHYTHM_WATCH"
"""Environment variable: where the rings are written."""

COLLECTIVES = (
    "all_reduce",
    "all_reduce_coalesced",
    "all_gather",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "broadcast",
    "broadcast_object_list",
    "gather",
    "gather_object",
    "monitored_barrier",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
)
NANO = 1e-9
NOTHING = dict.fromkeys(("loading", "pause", "other", "forward", "optimizer"), 0)
"""Nanoseconds of a step, in the order in which the ring has them."""

STAMPED = ("cpu",)
"""Types of device on which a gradient is there when torch's reducer notes that it is ready."""

TIMED = ("cpu", "cuda")
"""Types of device that have events, the first one with the stand-in of `polyrhythm.testing.cuda` only."""


class StepClock:
    """Adds up what a step takes, and writes it down when its exchange is over.

    Args:
        ring: where the steps go.
        now_ns: a clock that all ranks of a host read.
        links: looks at the connections when a step is over.
    """

    def __init__(
        self, ring: RingWriter, now_ns: Callable[[], int] = time.time_ns, links: LinkWatcher | None = None
    ) -> None:
        self._ring, self.now_ns, self._links = ring, now_ns, links
        self._sums = NOTHING.copy()
        self._step = 0
        self._forward_ns = self._other_ns = self._over_ns = 0
        self._ready_ns: Sequence[int] | None = None
        self._batch = 0
        self.depth = 0
        self.device: DeviceStamps | None = None

    def add(self, name: str, since_ns: int) -> None:
        self._sums[name] += self.now_ns() - since_ns

    def forward_begins(self) -> None:
        self._forward_ns, self._other_ns = self.now_ns(), self._sums["other"]

    def forward_is_over(self) -> None:
        """What it exchanged, such as buffers, is no computing."""
        self._over_ns = self.now_ns()
        self._sums["forward"] += self._over_ns - self._forward_ns - (self._sums["other"] - self._other_ns)

    def backward_is_over(self, began_ns: int, ready_ns: Sequence[int] = ()) -> None:
        """A backward pass with an exchange has returned: what comes now belongs to the next step.

        Args:
            began_ns: when it began.
            ready_ns: how long after the forward pass each gradient was ready; none if a device is asked.
        """
        step, sums = self._next_step()
        if self.device is not None:
            self.device.end(step, sums, began_ns)
            return
        end_ns, latest_ns = self.now_ns(), max(ready_ns, default=0)
        if ready_ns == self._ready_ns:  # no gradient of the wrapper was in this pass
            return
        self._ready_ns = ready_ns
        # Both clocks were read one after the other, and between them the rank may have stood.
        arrival_ns = min(max(self._over_ns + latest_ns, began_ns), end_ns)
        self._write(step, sums, began_ns, arrival_ns, end_ns)

    def _next_step(self) -> tuple[int, dict[str, int]]:
        """The step that is over, and what was added up in it."""
        step, sums = self._step, self._sums
        self._step, self._sums = step + 1, NOTHING.copy()
        return step, sums

    def device_stamped(self) -> None:
        """What the device is through with by now."""
        assert self.device is not None, "or nobody would ask"
        for done, arrival_ns, end_ns in self.device.passed():
            self._write(done.step, done.sums, arrival_ns, arrival_ns, end_ns)

    def use_device(self, stamps: "DeviceStamps", clock: str) -> None:
        """From now on the exchange is timed on a device, whose clock nobody else reads."""
        self.device = stamps
        self._ring.say_clock(clock)

    def step_without_wrapper(self) -> None:
        """An optimizer step of a script that averages by itself: its exchanges were the collectives that it called."""
        if self._sums["other"]:
            now_ns = self.now_ns()
            self._write(*self._next_step(), now_ns, now_ns, now_ns)

    def _write(self, step: int, sums: dict[str, int], began_ns: int, arrival_ns: int, end_ns: int) -> None:
        backward_ns = max(0, arrival_ns - began_ns)
        loading_ns, pause_ns, other_ns, forward_ns, optimizer_ns = sums.values()
        self._ring.write(
            step, arrival_ns, end_ns, loading_ns, pause_ns, other_ns, forward_ns, backward_ns, optimizer_ns, began_ns
        )
        if self._links is not None:
            self._links.look(self.now_ns() * NANO)

    def saw_batch(self, batch: Any) -> None:
        """Of the first mini-batch, how many samples it has."""
        if not self._batch:
            first = batch[0] if isinstance(batch, list | tuple) and batch else batch
            first = next(iter(first.values()), None) if isinstance(first, dict) else first
            shape: tuple[int, ...] = tuple(getattr(first, "shape", ()))
            self._batch = int(shape[0]) if len(shape) else 1
            self._ring.say_batch(self._batch)


class RankWatcher:
    """Puts clocks around what a script calls. The ring is opened when the script joins its group."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._clock: StepClock | None = None
        self._wrapper: Any = None
        self._in_sync = self._unseen = False

    def install(self) -> None:
        """Replace the methods of torch in place. There is no way back in this process."""
        self._watch_group()
        self._watch_wrapper()
        self._watch_backward()
        self._watch_loader()
        self._watch_optimizers()
        gc.callbacks.append(self._collected)

    def open(self, rank: int, ranks: int) -> None:
        if self._clock is None and ranks > 1:
            path = self._folder / f"rank-{rank:05d}.ring"
            ring = RingWriter(path, rank, ranks, socket.gethostname(), clock_id())
            self._clock = StepClock(ring, links=LinkWatcher(path.with_suffix(".links")))

    def _watch_group(self) -> None:
        import torch.distributed as dist
        from torch.distributed import distributed_c10d

        original = dist.init_process_group

        @functools.wraps(original)
        def init(*args: Any, **kwargs: Any) -> None:
            original(*args, **kwargs)
            self.open(dist.get_rank(), dist.get_world_size())

        for module in (dist, distributed_c10d):
            vars(module)["init_process_group"] = init
        for name in COLLECTIVES:
            if hasattr(distributed_c10d, name):
                timed = self._timed("other", getattr(distributed_c10d, name))
                for module in (dist, distributed_c10d):
                    vars(module)[name] = timed

    def _timed(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, with its time added up; of calls within calls the outermost counts."""

        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            clock = self._clock
            if clock is None or clock.depth:
                return original(*args, **kwargs)
            since_ns = clock.now_ns()
            clock.depth += 1
            try:
                return original(*args, **kwargs)
            finally:
                clock.depth -= 1
                clock.add(name, since_ns)

        return call

    def _watch_wrapper(self) -> None:
        import torch
        from torch.nn.parallel import DistributedDataParallel

        init_original: Any = DistributedDataParallel.__init__
        forward_original: Any = DistributedDataParallel.forward
        post_original: Any = DistributedDataParallel._post_forward

        @functools.wraps(init_original)
        def init(wrapper: Any, *args: Any, **kwargs: Any) -> None:
            init_original(wrapper, *args, **kwargs)
            if self._wrapper is None:
                self._unseen = not self._time_exchange(wrapper)

        @functools.wraps(forward_original)
        def forward(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
            if wrapper is self._wrapper and self._clock is not None:
                self._clock.forward_begins()
            return forward_original(wrapper, *args, **kwargs)

        @functools.wraps(post_original)
        def post_forward(wrapper: Any, output: Any) -> Any:
            clock = self._clock
            if wrapper is self._wrapper and clock is not None:
                clock.forward_is_over()
                self._in_sync = wrapper.require_backward_grad_sync and torch.is_grad_enabled()
                if self._in_sync and clock.device is not None:
                    clock.device_stamped()
            return post_original(wrapper, output)

        replace(DistributedDataParallel, "__init__", init)
        replace(DistributedDataParallel, "forward", forward)
        replace(DistributedDataParallel, "_post_forward", post_forward)
        replace(DistributedDataParallel, "_sync_buffers", self._timed("other", DistributedDataParallel._sync_buffers))

    def _time_exchange(self, wrapper: Any) -> bool:
        """Whether it can be done: from now on this wrapper's steps count."""
        if wrapper.device_type in STAMPED:
            seen = hasattr(getattr(wrapper, "reducer", None), "get_backward_stats")
        else:
            seen = self._clock is not None and wrapper.device_type in TIMED
            if seen:
                self._time_device()
        self._wrapper = wrapper if seen else None
        return seen

    def _time_device(self) -> None:
        """By events: what the reducer notes is when kernels were launched."""
        import torch

        assert self._clock is not None, "or nobody would ask"
        make, capturing = (
            functools.partial(torch.cuda.Event, enable_timing=True),
            torch.cuda.is_current_stream_capturing,
        )
        self._clock.use_device(DeviceStamps(make, capturing), f"device of {socket.gethostname()} {os.getpid()}")

    def _watch_backward(self) -> None:
        import torch

        original: Any = torch.autograd.backward

        @functools.wraps(original)
        def backward(*args: Any, **kwargs: Any) -> None:
            clock = self._clock
            if clock is None or not self._in_sync:
                original(*args, **kwargs)
                return
            began_ns, self._in_sync = clock.now_ns(), False
            if clock.device is None:
                original(*args, **kwargs)
                clock.backward_is_over(began_ns, self._wrapper.reducer.get_backward_stats())
                return
            handle = before_exchange(clock.device.arrive, args, kwargs)
            original(*args, **kwargs)
            if handle is not None:
                handle.remove()
            clock.backward_is_over(began_ns)

        replace(torch.autograd, "backward", backward)

    def _watch_loader(self) -> None:
        from torch.utils.data import dataloader

        original = dataloader._BaseDataLoaderIter.__next__

        @functools.wraps(original)
        def following(iterator: Any) -> Any:
            clock = self._clock
            if clock is None:
                return original(iterator)
            since_ns = clock.now_ns()
            try:
                batch = original(iterator)
            finally:
                clock.add("loading", since_ns)
            clock.saw_batch(batch)
            return batch

        replace(dataloader._BaseDataLoaderIter, "__next__", following)

    def _watch_optimizers(self) -> None:
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        began_ns = 0

        def before(*_: Any) -> None:
            nonlocal began_ns
            began_ns = self._clock.now_ns() if self._clock else 0

        def after(*_: Any) -> None:
            if self._clock is not None and began_ns:
                self._clock.add("optimizer", began_ns)
                if self._wrapper is None and not self._unseen:
                    self._clock.step_without_wrapper()

        register_optimizer_step_pre_hook(before)
        register_optimizer_step_post_hook(after)

    def _collected(self, phase: str, info: dict[str, int]) -> None:
        clock = self._clock
        if clock is not None:
            if phase == "start":
                self._collecting_ns = clock.now_ns()
            else:
                clock.add("pause", getattr(self, "_collecting_ns", clock.now_ns()))


def before_exchange(call: Callable[[], None], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call it when a backward pass has launched its last kernel, and before the exchange is waited for.

    The engine calls what was queued during the pass in that order. The reducer queues its wait with its last bucket, so
    what is queued at the very beginning comes before. A hook that answers nothing leaves the gradient as it is.
    """
    from torch.autograd import Variable

    first = args[0] if args else kwargs.get("tensors")
    root: Any = first[0] if isinstance(first, list | tuple) and first else first
    if not getattr(root, "requires_grad", False):
        return None

    def begin(_: Any) -> None:
        Variable._execution_engine.queue_callback(call)

    return root.register_hook(begin)


def replace(owner: object, name: str, value: object) -> None:
    setattr(owner, name, value)


def clock_id() -> str:
    """The same for all who read this host's clock."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return socket.gethostname()


def watched_folder() -> Path | None:
    """Where to write, if this process is a rank of a watched job."""
    folder = os.environ.get(FOLDER)
    return Path(folder) if folder and "RANK" in os.environ and "LOCAL_RANK" in os.environ else None
