"""A worker's side of the job: what it does at the edges of its steps, and what it does when the hub speaks.

The loader calls `begin_epoch`, `draw` and `end_epoch`; the optimizer's hooks call `before_step` and `after_step`.
Between them the script computes, and nothing happens here. Messages are followed where the worker has to wait for the
hub anyway, and looked at just before a push. What a step is made of depends on the policy: see `Side`.
"""

import logging
import time
from collections.abc import Callable
from typing import Any

from polyrhythm.core import Cluster, Policy, Settings
from polyrhythm.errors import DivergedError, PolyrhythmError
from polyrhythm.policies import parse
from polyrhythm.runtime.control import (
    Agreed,
    AtEnd,
    Diverged,
    Ended,
    EpochDone,
    Phase,
    Poisoned,
    Ready,
    Refused,
    SwitchTo,
    ToWorker,
    Uploaded,
)
from polyrhythm.runtime.epoch import GroupError
from polyrhythm.runtime.exchange import Exchange
from polyrhythm.runtime.guard import Guard
from polyrhythm.runtime.in_lockstep import InLockstep
from polyrhythm.runtime.line import Draw, Link, Tally
from polyrhythm.runtime.pushing import Pushing
from polyrhythm.runtime.replica import Replica
from polyrhythm.runtime.roaming import Roaming
from polyrhythm.runtime.station import UNREAD, Side, Station
from polyrhythm.runtime.steering import Steering
from polyrhythm.runtime.venue import venue_of
from polyrhythm.telemetry.stragglers import Arrival

log = logging.getLogger(__name__)


class JobError(PolyrhythmError):
    """The job cannot go on for this worker: it was refused, removed, or the hub is gone."""


class Participant:
    """Follows the hub.

    Args:
        rank: this worker's.
        link: see `Link`.
        replica: the script's model and optimizer.
        exchange: the model's side of collectives.
        clock: seconds, for durations only; that of `Exchange.launched_s`.
        guard: watches the losses; none: nobody does.
    """

    def __init__(
        self,
        rank: int,
        link: Link,
        replica: Replica,
        exchange: Exchange,
        clock: Callable[[], float] = time.perf_counter,
        guard: Guard | None = None,
    ) -> None:
        self.rank = rank
        self._guard = guard or Guard(replica)
        self.generation = 0
        steering = Steering(replica.optimizer)
        self._station = Station(rank, link, replica, exchange, clock, self._follow, steering)
        self._side: Side = Pushing(self._station)
        self._epoch = -1
        self.arrivals: dict[int, Arrival] = {}
        self._dataset_samples = 0
        self._position = 0
        self._own_samples: int | None = None

    @property
    def tally(self) -> Tally:
        """What this worker has done."""
        return self._station.tally

    @property
    def phase(self) -> Phase | None:
        """The phase that it is in; None before the first."""
        return self._station.phase

    @property
    def version(self) -> int:
        """Version of the servers' parameters that it read last."""
        return max(0, self._station.version)

    @property
    def apart(self) -> bool:
        """Whether workers make steps of their own now, so that they cannot meet in a collective."""
        return not self._side.together

    # -- what the loader calls ---------------------------------------------------------------------------------------

    def begin_epoch(self, ready: Ready) -> None:
        """Stand before an epoch until there is a step to make, or until it is over without one."""
        station = self._station
        if self._epoch >= 0 and not station.done:
            self._leave_early()
        if self._guard.goes_back:
            self.fetch_state()
            self._guard.keep(ready.epoch)
        self._epoch, self._dataset_samples, self._position = ready.epoch, ready.dataset_samples, 0
        station.over = station.done = False
        self._own_samples = 0 if ready.shards else None
        station.link.send(ready)
        station.wait()

    @property
    def samples(self) -> int:
        """Samples that the job had dealt out before the mini-batch that the script has.

        With a shard of its own a worker takes it that the others are as far as itself.
        """
        return max(self._epoch, 0) * self._dataset_samples + self._position

    def dealt(self, draw: Draw) -> None:
        """The script gets a mini-batch of this draw."""
        if self._own_samples is None:
            self._position = draw.leases[0].start
            return
        members = len(self.phase.members) if self.phase else 1
        self._position = min(self._own_samples * members, self._dataset_samples)
        self._own_samples += draw.samples

    def draw(self) -> Draw | None:
        """The next mini-batch that this worker may fetch; None when there is none for now."""
        leases = self._side.draw()
        return None if leases is None else Draw(leases, self.generation)

    def end_epoch(self) -> bool:
        """Stand at the end of the epoch until everyone does; False if there is more to process after all."""
        station = self._station
        if station.done:
            return True
        if not station.may_step:
            station.link.send(AtEnd(self._epoch, station.phase.number if station.phase else 0))
            station.wait()
        return station.done

    def _leave_early(self) -> None:
        """The script has left its loop before the end: until the next phase nothing here concerns this worker."""
        self._station.poisoned = True
        self._side = Pushing(self._station)

    def fetch_state(self) -> None:
        """Between two epochs: take over the optimizer's state if the servers have it."""
        station = self._station
        if self._side.on_servers and station.phase is not None and station.done:
            station.link.download(station.version)

    # -- what the optimizer's hooks call -----------------------------------------------------------------------------

    def before_step(self, samples: int) -> None:
        """The gradients are there. If they are not for the script's optimizer, hide them from it.

        A backward pass that ends in an exchange computes until it launches the last collective; then it waits.
        """
        station = self._station
        now_s = station.clock()
        launched_s = station.exchange.launched_s if station.exchange.reduces else now_s
        computed_at_s = launched_s if launched_s > station.started_s else now_s
        station.computed_s, station.exchanged_s = computed_at_s - station.started_s, now_s - computed_at_s
        station.void = False
        station.loss = station.losses.take() if station.losses.listens else None
        if station.loss is not None:
            self._watch(station.loss)
        if station.steering.due:
            station.steering.begin()
        self._side.before_step(samples)

    def after_step(self, samples: int) -> None:
        """The step is complete, but for what the policy makes of it."""
        station, tally = self._station, self._station.tally
        station.replica.show_gradients()
        if station.steering.own:
            station.steering.end()
        if station.void:
            tally.dropped_steps += 1
        else:
            tally.steps += 1
            tally.samples += samples
        tally.computed_s += station.computed_s
        self._side.after_step(samples)

    def skip_step(self, samples: int) -> None:
        """The script drew a mini-batch and made no step with it, as a GradScaler does when it finds infinities."""
        station = self._station
        station.losses.take()
        station.tally.skipped_steps += 1
        station.computed_s, station.exchanged_s = station.clock() - station.started_s, 0.0
        self._side.skip_step(samples)

    def accumulate(self, last: bool) -> None:
        """The next backward pass is the last one before the step, or adds to the gradients of those before it."""
        self._station.exchange.reduce_now(last)

    def switch(self, policy: str) -> None:
        """Ask for another policy."""
        self._station.link.send(SwitchTo(policy))

    def _watch(self, loss: float) -> None:
        """Tell the hub if the losses have diverged; until it has decided what becomes of it, everything goes on."""
        if (why := self._guard.see(loss)) and self.phase:
            self._station.link.send(Diverged(self.phase.number, why, self._guard.goes_back))

    # -- following the hub -------------------------------------------------------------------------------------------

    def _follow(self, message: ToWorker) -> None:
        if isinstance(message, Phase):
            self._enter(message)
        elif isinstance(message, Refused):
            raise JobError(f"rank {self.rank} cannot take part: {message.reason}")
        elif isinstance(message, Ended):
            raise DivergedError(message.reason)
        elif isinstance(message, EpochDone):
            self._finish_epoch(message)
        elif not self._station.poisoned:  # else it belongs to a phase that has failed for this rank
            self._side.follow(message)

    def _enter(self, phase: Phase) -> None:
        """A phase starts: forget what was granted, agree on the state, and move it where the policy needs it."""
        log.info("rank %d: phase %d, policy %s, members %s", self.rank, phase.number, phase.policy, phase.members)
        station, policy = self._station, parse(phase.policy)
        on_servers = venue_of(policy) == "servers"
        if station.phase is None or station.phase.policy != phase.policy:
            station.exchange.forget_velocity()
        station.phase = phase
        self.generation += 1
        self._side, station.poisoned = Pushing(station), False
        station.steering.settings = Settings()
        station.losses.listen("loss" in policy.traits.needs or self._guard.listens)
        station.exchange.part()
        self._go_back(phase)
        if not on_servers or phase.contributors:
            try:
                self._meet(phase, policy.traits.venue == "replicated")
            except GroupError as error:
                station.poisoned = True
                station.link.send(Poisoned(phase.number, 0, str(error)))
                return
        self._move_state(phase, on_servers)
        if on_servers:
            station.exchange.part()
            self._side = Pushing(station, swaps=policy.traits.reads_early and station.link.full_duplex)
        else:
            self._side = self._side_of(policy, phase)

    def _go_back(self, phase: Phase) -> None:
        """If the phase goes on from a state that was kept: the contributor takes it, for all."""
        if phase.back_to is None:
            return
        self._guard.start_again()
        if self.rank in phase.contributors:
            self._guard.go_back(phase.back_to)

    def _side_of(self, policy: Policy[Any], phase: Phase) -> Side:
        """How steps are made among members that hold the parameters themselves."""
        if venue_of(policy) == "hub":
            return Roaming(self._station, policy)
        counts = phase.batch_size, phase.workload_samples, phase.processed_samples
        cluster = Cluster(len(phase.members), *counts, dataset_samples=self._dataset_samples)
        return InLockstep(self._station, policy, cluster, phase)

    def _meet(self, phase: Phase, measures: bool) -> None:
        station = self._station
        station.link.meet(station.exchange, phase.members, phase.number)
        if measures:
            station.exchange.epoch.open_mesh()
        if phase.contributors:
            station.exchange.agree(phase.members, phase.contributors)
            station.link.send(Agreed(phase.number))

    def _move_state(self, phase: Phase, on_servers: bool) -> None:
        station, link = self._station, self._station.link
        has_it = not on_servers or bool(phase.contributors)
        if phase.state == "pull":
            link.download(phase.version)
        elif phase.state == "upload" and self.rank == phase.source:
            link.upload(phase.version)
            link.send(Uploaded(phase.number))
            has_it = True
        # Servers that go on may be ahead of what this worker has read, and an upload may differ from what it has.
        if has_it:
            station.version = phase.version
        elif phase.state == "upload":
            station.version = UNREAD

    def _finish_epoch(self, message: EpochDone) -> None:
        """Everyone is at the end."""
        if self._station.phase is not None:
            self._side.end_epoch(message.version)
        self._station.done = message.epoch == self._epoch
        self.arrivals = message.arrivals
