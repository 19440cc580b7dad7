"""Train under a policy with a loop that stays as it is: the session hooks the optimizer's step and deals out the data.

    with polyrhythm.session(model, optimizer, policy="ssp:3") as session:
        for epoch in range(10):
            for x, y in session.loader(dataset, batch_size=64):
                optimizer.zero_grad()
                loss_function(model(x), y).backward()
                optimizer.step()

Start it with ``polyrhythm run`` or torchrun, or by itself as a job of one worker.
"""

import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from types import MappingProxyType, TracebackType
from typing import Any

import msgspec
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import Dataset

from polyrhythm.core import Policy
from polyrhythm.errors import DivergedError, UsageError
from polyrhythm.lines import say
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.checkpoint.replica_state import Keepable
from polyrhythm.runtime.checkpoint.saver import ReplicaCheckpoints
from polyrhythm.runtime.collectives.attending import ears
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.launch.groups import check_groups
from polyrhythm.runtime.launch.preemption import TerminationWatch, preempted
from polyrhythm.runtime.launch.rendezvous import find_coordinator, read_number
from polyrhythm.runtime.launch.restarts import tell_joined
from polyrhythm.runtime.wire.config_sources import same, session_arguments
from polyrhythm.runtime.wire.job_config import runnable
from polyrhythm.runtime.wire.parent_death import tie_forks
from polyrhythm.runtime.wire.protocol import Bye
from polyrhythm.runtime.wire.setting_values import SESSION
from polyrhythm.runtime.worker import refusals
from polyrhythm.runtime.worker.client import CoordinatorClient
from polyrhythm.runtime.worker.data_injection import Injector
from polyrhythm.runtime.worker.ddp_exchange import DDPExchange
from polyrhythm.runtime.worker.group.client import make_client
from polyrhythm.runtime.worker.group.exchange import SliceExchange
from polyrhythm.runtime.worker.group.link import find_link
from polyrhythm.runtime.worker.group.replica import ShardedReplica
from polyrhythm.runtime.worker.loader import Accumulation, LoaderTurns, SessionLoader, asked_data, data_terms, dealt_to
from polyrhythm.runtime.worker.losses.guard import Guard
from polyrhythm.runtime.worker.optimizers import parts_of
from polyrhythm.runtime.worker.presence.epoch_place import EpochPlace
from polyrhythm.runtime.worker.replica import ScriptReplica
from polyrhythm.runtime.worker.worker import Worker
from polyrhythm.training.compression import Compression, parse_compression
from polyrhythm.training.data.injection import Injection, check_injection, own_batch
from polyrhythm.training.divergence import OnDivergence

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Limit of one collective, torch's own; a dead worker is noticed long before."""


class Session:
    """One worker of a job, from ``with`` to its end; see `session`."""

    _trainings, _again, measured = 0, False, True
    _client: CoordinatorClient = refusals.NOT_OPEN
    _worker: Worker = refusals.NOT_OPEN

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        arguments: Mapping[str, Any] = MappingProxyType({}),
        moving: Mapping[str, Tensor] | None = None,
    ) -> None:
        refusals.refuse_parts(model, optimizer)
        self._link = link = find_link(model)
        parts = model, optimizer
        self._replica = ScriptReplica(*parts, moving) if link is None else ShardedReplica(*parts, link, moving)
        self._optimizer, self._arguments = optimizer, arguments
        self._first_epoch, self._turns = 0, LoaderTurns()
        self._handles = list[Any]()
        self._checkpoints: ReplicaCheckpoints | None = None
        self._injector: Injector | None = None

    def __enter__(self) -> "Session":
        refusals.refuse_second()
        tie_forks()
        ears.listen()
        self.rank, address, arguments = find_coordinator(self._arguments, self._trainings)
        self._client = make_client(address, self.rank, self._replica, arguments, self._link, self._trainings)
        tell_joined(self.rank)
        self._exchange, config = self._make_exchange(), self._client.config
        self.world_size = self._link.place.groups if self._link else read_number("WORLD_SIZE", config.workers)
        check_groups(config, config.group_size if self._link else 0)
        refusals.refuse_shares(config, self.measured)
        self._replica.check_policy(parse_policy(config.policy))
        if self._replica.unservable and config.averaged_state == "average":
            raise UsageError(f"the optimizer's state cannot be averaged: {self._replica.unservable}")
        guard = Guard(self._replica, config.on_divergence, config.divergence)
        parts = self._client, self._replica, self._exchange, time.perf_counter
        anyone = self._link.anyone if self._link else bool
        self._worker = Worker(self.rank, *parts, guard, self._open_checkpoints(), anyone)
        self._accumulation = Accumulation(self._worker)
        keep = partial(steer.keep_last, address, config.grace / 2)
        self._termination = TerminationWatch(self._worker.ask_to_leave, config, keep)
        self._termination.start()
        self._client.when_asked_to_leave(self._worker.ask_to_leave)
        for part in parts_of(self._optimizer):
            self._handles += [
                part.register_step_pre_hook(self._before_step),
                part.register_step_post_hook(self._after_step),
                part.register_state_dict_pre_hook(lambda _: self._before_state_dict()),
            ]
        self._open_mark = refusals.note_open()
        return self

    def _open_checkpoints(self) -> ReplicaCheckpoints | None:
        """What writes checkpoints, if the job has any; if it goes on from one, the model has it from now on."""
        folder, client = self._client.config.checkpoint, self._client
        if folder is None:
            return None
        made = ReplicaCheckpoints(self._replica.model, self._optimizer, folder, client.tell_aside, self.rank == 0)
        if client.info.resume:
            made.read(client.info.resume)
        self._checkpoints = made
        return made

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open_mark.process = 0
        for handle in self._handles:
            handle.remove()
        self._worker.close()
        if self._checkpoints is not None:
            self._checkpoints.close(failed=error is not None)
        if preempted(error):
            self._worker.leave("it was asked to end")
        elif error is not None:
            self._exchange.abandon(f"rank {self.rank} failed with {type(error).__name__}")
        self._exchange.close()
        if not self._worker.left and (kind is None or issubclass(kind, DivergedError)):
            bye = Bye(self._client.reported.take(), again=self._again)
            (self._client.train_again if self._again else self._client.send)(bye)
        self._termination.stop(ending=preempted(error))
        self._client.close()

    def loader(
        self,
        dataset: Dataset[Any],
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        accumulate: int = 1,
        partition: str | None = None,
        labels: Any | None = None,
        injection: tuple[float, float] | None = None,
        **options: Any,
    ) -> SessionLoader[Any]:
        """Batches of this worker; one call may serve all epochs, or each epoch may make its own. Not for validation.

        Args:
            dataset: map-style, the same on every worker.
            batch_size: samples of one step on one worker; under a policy that deals shares, such as balanced, the
                mean over the workers.
            shuffle: whether each epoch has a random order, from `seed`.
            seed: the same on every worker.
            accumulate: mini-batches whose gradients the script adds up before a step; each has
                ``batch_size / accumulate`` samples. The script steps when `step_due` is true.
            partition: which worker reads which samples, such as ``seldp`` or ``dirichlet:0.3``; "shared" by default,
                see `polyrhythm.training.data.partition`. Each planned worker has a shard, shuffled in every epoch.
                This and `injection` yield to ``--partition`` and ``--injection`` of ``polyrhythm run``.
            labels: one a sample, for partitions by label; none: ``dataset.targets``, or the last of a TensorDataset.
            injection: shares (alpha, beta) of randomised data injection: in every step alpha of the workers send beta
                of their mini-batch to all others, and each draws the fewer samples itself (see `own_batch`), so that
                a mini-batch has about `batch_size`. For policies under which workers make their steps together.
            options: further arguments of `torch.utils.data.DataLoader`, such as ``num_workers`` and ``collate_fn``.
        """
        refusals.check_numbers(batch_size, accumulate, seed)
        partition, injection = asked_data(self._client.config, self.rank, partition, injection)
        if injection is not None:
            batch_size = self._start_injection(injection, batch_size, seed)
        return SessionLoader(
            dataset,
            batch_size,
            self._worker,
            self._accumulation,
            shuffle=shuffle,
            seed=seed,
            accumulate=accumulate,
            first_epoch=self._first_epoch,
            turns=self._turns,
            dealt=dealt_to(partition, dataset, labels, self.rank, self.world_size, seed),
            terms={**data_terms(partition, injection), "shuffle": bool(shuffle), **self._replica.session_terms},
            inject=self._injector if injection else None,
            workers=self.world_size,
            own=self._link.own if self._link is not None else None,
            **options,
        )

    def _start_injection(self, injection: tuple[float, float], batch_size: int, seed: int) -> int:
        """Make the injector, once; samples that this worker draws itself."""
        check_injection(injection)
        own = own_batch(batch_size, *injection, read_number("WORLD_SIZE", 1))
        if self._injector is None:
            self._injector = Injector(self._worker, self._exchange, Injection(*injection, seed), own)
        return own

    def keep(self, **objects: Keepable) -> None:
        """Have checkpoints keep these too, such as ``session.keep(scheduler=scheduler)``; before the first loader.

        Args:
            objects: each has ``state_dict`` and ``load_state_dict``, with numbers, texts, containers and small tensors
                in it. When a job goes on from a checkpoint they get their state just before its first step.
        """
        if self._checkpoints is not None:
            self._checkpoints.kept |= objects

    def leave(self) -> None:
        """Leave the job between two steps, as before a machine is taken away; the others go on with its samples.

        Loops over the session's loader end. Under SIGTERM a worker does this by itself when its step is complete, and
        ends with exit status 143, unless the script handles the signal.
        """
        self._worker.leave()

    def log(self, values: Mapping[str, Any] | None = None, /, **named: Any) -> None:
        """Report figures such as the accuracy: the live page, `polyrhythm top`, metrics and TensorBoard show them.

        Costs no message of its own; of several values of a name within half a second the latest counts, and the job
        shows the mean of the workers' latest. ``loss`` takes the place of the loss that the job has heard.

        Args:
            values: by name, for names that are no identifiers.
            named: the others, as in ``session.log(accuracy=0.97)``; 32 names at most.

        Raises:
            UsageError: for a value that is no number, or too many names.
        """
        self._client.tell_figures({**(values or {}), **named})

    def switch(self, policy: str | Policy[Any]) -> None:
        """Change the policy of the whole job at its next common moment; any one worker may ask."""
        self._worker.switch(runnable(policy))

    @property
    def step_due(self) -> bool:
        """Whether the mini-batch at hand is the last one before a step; always, without ``accumulate``."""
        return self._accumulation.due

    @property
    def policy(self) -> str:
        """Spec of the policy in force."""
        return self._worker.phase.policy if self._worker.phase else self._client.config.policy

    @property
    def samples(self) -> int:
        """Samples that the whole job had dealt out before this mini-batch: what a learning-rate schedule counts."""
        return self._worker.samples

    @property
    def metrics(self) -> dict[str, Any]:
        """What this worker has done: steps, samples, and seconds that it computed, waited and transferred.

        `arrivals` has how each worker of the job arrived until the end of the last epoch: see `Lateness`.
        """
        phase = self._worker.phase
        return {
            **asdict(self._worker.tally),
            "rank": self.rank,
            "policy": self.policy,
            "phase": phase.number if phase else 0,
            "members": phase.members if phase else (),
            "version": self._worker.version,
            "injected": self._injector.intake.sorted() if self._injector else {},
            "injected_bytes": self._injector.bytes if self._injector else 0,
            "arrivals": {worker: msgspec.structs.asdict(a) for worker, a in self._worker.arrivals.items()},
        }

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside those of the model and the optimizer; call it first, between two steps.

        Under an asynchronous policy the servers have the optimizer's state; this brings it into the script's optimizer.
        Within an epoch it says which samples are still to be made, and the state of the policy. Where replicas differ
        at this step, or workers have shards of their own, it is that of the epoch before, and a line says so.
        """
        resumption, loader = self._worker.fetch_state(within_epoch=True), self._turns.latest
        state = {"epoch": self._first_epoch - 1, "policy": self.policy}
        if loader is None or not loader.inside:
            return {**state, "epoch": loader.epoch} if loader else state
        state["epoch"], place = loader.epoch - 1, loader.place(resumption)
        if place is not None:
            return {**state, "policy": place.resumption.chosen, "position": place.as_state}
        rest = f"who resumes makes epoch {loader.epoch} again"
        say(f"rank {self.rank}: under {self.policy} the state at this step cannot be kept exactly; {rest}")
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on after the epoch of a checkpoint, or within the next one, with its policy; before the first loader.

        A policy that environment, job file or flags have chosen holds instead.

        Raises:
            UsageError: for a dict that `state_dict` has not made.
        """
        refusals.check_state(state)
        self._first_epoch = int(state["epoch"]) + 1
        self._turns.place = EpochPlace.of(state["position"]) if "position" in state else None
        policy, config = str(state["policy"]), self._client.config
        if (where := config.given.get("policy", SESSION)) == SESSION:
            self.switch(policy)
        elif self.rank == 0 and not same("policy", policy, config.policy):
            say(f"policy {config.policy} of {where} holds; {policy} of the checkpoint is overruled")

    def _make_exchange(self) -> DDPExchange:
        if self._link is not None:
            return SliceExchange(self._replica, self.rank, COLLECTIVE_TIMEOUT, self._link)
        return DDPExchange(self._replica, self.rank, COLLECTIVE_TIMEOUT, self._compression)

    @property
    def _compression(self) -> Compression:
        return parse_compression(self._client.config.compress)

    # -- hooks ---------------------------------------------------------------------------------------------------------

    def _before_state_dict(self) -> None:
        self._worker.fetch_state()

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._worker.left:
            return
        refusals.refuse_step(optimizer, args, kwargs)
        refusals.refuse_untimely(self._accumulation.samples, self._accumulation.due)
        self._worker.before_step(self._accumulation.samples)

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if not self._worker.left:
            self._worker.after_step(self._accumulation.take())


def session(
    model: nn.Module,
    optimizer: Optimizer,
    policy: str | Policy[Any] | None = None,
    *,
    epochs: int | None = None,
    compress: str | None = None,
    on_divergence: OnDivergence | None = None,
    checkpoint: str | None = None,
    every: str | None = None,
) -> Session:
    """A worker's part in a job that trains `model` under `policy`.

    Args:
        model: the plain module, on one device; not wrapped in DistributedDataParallel.
        optimizer: any of torch.optim, or a subclass whose step leaves parameters without gradients alone.
        policy: spec or policy that the job starts with; "bsp" if nobody names one.
        epochs: epochs that the job plans, 1 by default; policies that count shares of the workload need it.
        compress: what gradients and replicas travel as, such as ``int8`` or ``topk:0.01``; see
            `polyrhythm.training.compression`. "none" by default.
        on_divergence: what becomes of the job when a loss that the script calls ``backward()`` on is not finite, or
            explodes (see `polyrhythm.training.divergence.LossWatch`): "ignore", the default; "end", with a
            `DivergedError` on every worker; "rollback", to the start of the epoch, and on under BSP, or the end if that
            was done before.
        checkpoint: folder for checkpoints of the whole job, from the newest of which it goes on; the same on all hosts.
        every: time between two checkpoints, such as ``60s``, the default, or ``5m``.

    The environment, a job file and the flags of ``polyrhythm run`` take precedence over these arguments, as
    `polyrhythm.runtime.wire.config_sources` says; where they differ, one line at the start says so.

    Every worker starts from the parameters of the lowest rank. Buffers, such as those of batch norm: in synchronous
    mode on gradients all workers use those of the lowest rank, as with DistributedDataParallel; an average of replicas
    averages them too; under an asynchronous policy each worker keeps its own.

    Raises:
        UsageError: for a model or an optimizer that cannot take part; the message says why.
        ClusterError: from any step, when the job cannot go on: a server is lost, or the loss has diverged.

    A program that no launcher has started is a job of one worker:

    >>> import torch
    >>> from torch.utils.data import TensorDataset
    >>> model = torch.nn.Linear(2, 1)
    >>> dataset = TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> with session(model, optimizer, policy="bsp") as job:
    ...     for x, y in job.loader(dataset, batch_size=4):
    ...         optimizer.zero_grad()
    ...         torch.nn.functional.mse_loss(model(x), y).backward()
    ...         _ = optimizer.step()
    ...     print(job.policy)
    bsp
    """
    asked = {"compress": compress, "on_divergence": on_divergence, "checkpoint": checkpoint, "every": every}
    return Session(model, optimizer, session_arguments(policy=policy, epochs=epochs, **asked))
