"""Runs that share their beginning: one is simulated and kept at several moments, others go on from there.

Two policies share a run up to the first event at which they decide differently, and because policies are pure, that is
found out by showing the events of the one run to the other policy. Nothing else has to be known about them.
"""

import copy
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from polyrhythm.core import Decisions, Event, Policy
from polyrhythm.errors import DivergedError
from polyrhythm.sim.cluster.compute import streams
from polyrhythm.sim.cluster.files import checked
from polyrhythm.sim.cluster.scenario import Scenario
from polyrhythm.sim.engine import Engine
from polyrhythm.sim.job import SimJob, blank_result, build_job, build_numerics, one_line, one_thread, transport_plan
from polyrhythm.sim.observer import Observer
from polyrhythm.telemetry import Meter, RunResult

STATELESS = ("task", "config", "model", "gradients", "schedule")
"""Parts of numerics that hold nothing from one step to the next: the model is loaded before each use."""


class EventRecorder:
    """The events and decisions so far, in the place of a trace; a copy shares them with the original."""

    def __init__(self, entries: Sequence[tuple[Event, Decisions]] = ()) -> None:
        self.entries = list(entries)

    def write(self, event: Event, decisions: Decisions) -> None:
        self.entries.append((event, decisions))

    def remark(self, text: str) -> None:
        """What a policy remarks follows from the events."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "EventRecorder":
        return EventRecorder(self.entries)


class Durations:
    """A worker's durations, which unlike a generator can be copied: a copy draws them again up to here."""

    def __init__(self, scenario: Scenario, seed: int, worker: int, drawn: int = 0) -> None:
        self.about = scenario, seed, worker
        self.source = streams(scenario.compute, scenario.mean_compute_s, seed)[worker]
        self.drawn = drawn
        for _ in range(drawn):
            next(self.source)

    def __iter__(self) -> Iterator[float]:
        return self

    def __next__(self) -> float:
        self.drawn += 1
        return next(self.source)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Durations":
        return Durations(*self.about, self.drawn)


class Pause:
    """Stops the engine once so many samples are processed, and lets the observer have its moments before."""

    def __init__(self, engine: Engine) -> None:
        self.engine, self.at_samples, self.paused = engine, math.inf, False
        self.inner_mark, self.inner = engine.mark, engine.at_mark
        engine.watch(engine.mark, self.at_mark)

    def at(self, samples: float) -> None:
        """Where to stop next; what was stopped for another reason stays so."""
        self.at_samples = samples
        if self.paused:
            self.engine.stopped = self.paused = False
        self.engine.mark = min(self.inner_mark, samples)

    def at_mark(self) -> float:
        samples = self.engine.meter.samples
        if samples >= self.inner_mark:
            self.inner_mark = self.inner()
        if samples >= self.at_samples:
            self.at_samples = math.inf
            self.engine.stopped = self.paused = True
        return min(self.inner_mark, self.at_samples)


@dataclass
class RunSnapshot:
    """A run that stands still, with all that it is made of."""

    engine: Engine
    observer: Observer
    pause: Pause
    recorder: EventRecorder

    def copy(self) -> "RunSnapshot":
        """A run of its own that stands at the same moment; what never changes is shared."""
        job = self.engine.job
        shared = [getattr(job.numerics, name, None) for name in STATELESS]
        memo = {
            id(value): value for value in (*shared, job.policy, job.network, job.plan, job.cluster) if value is not None
        }
        return RunSnapshot(*copy.deepcopy((self.engine, self.observer, self.pause, self.recorder), memo))

    @property
    def now_s(self) -> float:
        return self.engine.calendar.now_s


class Prefix:
    """A run under one policy, from which runs under others branch off.

    Args:
        scenario, seed: of all these runs.
        policy: of this one.

    Example:
        >>> from polyrhythm.policies import parse_policy
        >>> from polyrhythm.sim import Device, Scenario, TimingWorkload, simulate
        >>> devices = [Device(compute_s=1.0), Device(compute_s=2.0)]
        >>> scenario = Scenario(devices=devices, workload=TimingWorkload(batch_size=1, samples=100))
        >>> prefix = Prefix(scenario, parse_policy("post-local:h=2,at=1"), seed=0)
        >>> prefix.advance(0.5)
        >>> result, reused_s = prefix.branch(parse_policy("post-local:h=2,at=0.5"))
        >>> result.duration_s == simulate(scenario, parse_policy("post-local:h=2,at=0.5")).duration_s, reused_s
        (True, 48.0)
    """

    def __init__(self, scenario: Scenario, policy: Policy[Any], seed: int) -> None:
        self.scenario, self.policy, self.seed = checked(scenario), policy, seed
        self.live = self._start()
        self.kept = [self.live.copy()]
        self.finished: RunResult | None = None

    def _start(self) -> RunSnapshot:
        scenario, seed = self.scenario, self.seed
        job = build_job(scenario, self.policy, build_numerics(scenario, seed), seed)
        job.durations = [Durations(scenario, seed, worker) for worker in range(scenario.workers)]
        recorder, training = EventRecorder(), scenario.training
        engine = Engine(job, Meter(training.target_accuracy if training else None), recorder)  # type: ignore[arg-type]
        observer = Observer(engine, scenario, None)
        observer.attach()
        return RunSnapshot(engine, observer, Pause(engine), recorder)

    @property
    def spent_s(self) -> float:
        return self.live.now_s

    @property
    def step_samples(self) -> int:
        """Samples of one step of all workers, the last moment before a barrier at which policies still agree."""
        return self.scenario.workers * self.scenario.batch_size

    def _stop_at(self, share: float) -> float:
        return share * self.live.engine.job.cluster.workload_samples - 1.5 * self.step_samples

    def _is_behind(self, share: float) -> bool:
        return self.finished is not None or self._stop_at(share) <= self.live.engine.meter.samples

    def advance(self, share: float) -> None:
        """Run up to shortly before this share of the workload is processed, and keep that moment; never backwards."""
        if self._is_behind(share):
            return
        with one_thread(self.scenario):
            self._go_on(self._stop_at(share))
        if self.live.pause.paused and self.finished is None:
            self.kept.append(self.live.copy())

    def _go_on(self, samples: float) -> None:
        if not self.live.recorder.entries:
            self.live.engine.begin()
        self.live.pause.at(samples)
        try:
            self.live.engine.go_on()
        except DivergedError as error:
            self.finished = finish(self.live, self._blank(self.policy), error)

    def follow(self, policy: Policy[Any], shares: Sequence[float]) -> None:
        """Advance to one of these shares after the other, as long as another policy would have led there as well."""
        for share in shares:
            if not self._is_behind(share) and self._agreed(policy)[0] is not self.kept[-1]:
                return
            self.advance(share)

    def finish(self) -> RunResult:
        if self.finished is None:
            with one_thread(self.scenario):
                self.finished = complete(self.live, self._blank(self.policy))
        return self.finished

    def branch(self, policy: Policy[Any]) -> tuple[RunResult, float]:
        """The run under another policy, and the virtual time that it shares with this one instead of taking it again.

        The result is that of `simulate`. It goes on from the last kept moment before the policies part.
        """
        snapshot = self._latest(policy)
        reused_s = snapshot.now_s
        with one_thread(self.scenario):
            return complete(snapshot, self._blank(policy)), reused_s

    def _latest(self, policy: Policy[Any]) -> RunSnapshot:
        """A copy of the last kept moment to which this policy would have led as well, now led by it."""
        snapshot, state = self._agreed(policy)
        return led_by(snapshot.copy(), policy, state)

    def _agreed(self, policy: Policy[Any]) -> tuple[RunSnapshot, Any]:
        first = policy.init(self.live.engine.job.cluster)
        state, seen, best = first, 0, (self.kept[0], first)
        for snapshot in self.kept[1:] if self._alike(policy) else ():
            for event, decisions in snapshot.recorder.entries[seen:]:
                state, decided = policy.decide(state, event)
                if decided != decisions:
                    return best
            seen, best = len(snapshot.recorder.entries), (snapshot, state)
        return best

    def _alike(self, policy: Policy[Any]) -> bool:
        """Whether what the two policies decide takes the same time, as long as they decide the same."""
        job = self.live.engine.job
        theirs, own = transport_plan(policy, job.network), transport_plan(self.policy, job.network)
        return theirs == own or (theirs.ring == own.ring and self.policy.traits.exchanges == {"gradients"})

    def _blank(self, policy: Policy[Any]) -> RunResult:
        return blank_result(self.scenario, policy, self.seed, None)


def led_by(snapshot: RunSnapshot, policy: Policy[Any], state: Any) -> RunSnapshot:
    """The run goes on under this policy; at its start the engine is built anew, because traits may differ."""
    engine = snapshot.engine
    if not snapshot.recorder.entries:
        return restarted(engine.job, policy, snapshot)
    engine.driver.lead(policy, state)
    engine.job.policy = policy
    engine.obey_traits()
    return snapshot


def restarted(job: SimJob, policy: Policy[Any], snapshot: RunSnapshot) -> RunSnapshot:
    job.policy = policy
    engine = Engine(job, snapshot.engine.meter, snapshot.recorder)  # type: ignore[arg-type]
    engine.mark, engine.at_mark = snapshot.pause.inner_mark, snapshot.pause.inner
    snapshot.observer.engine = engine
    return RunSnapshot(engine, snapshot.observer, Pause(engine), snapshot.recorder)


def complete(snapshot: RunSnapshot, result: RunResult) -> RunResult:
    started, trouble = time.perf_counter(), None
    try:
        if not snapshot.recorder.entries:
            snapshot.engine.begin()
        snapshot.pause.at(math.inf)
        snapshot.engine.go_on()
    except DivergedError as error:
        trouble = error
    finished = finish(snapshot, result, trouble)
    finished.wall_s = time.perf_counter() - started
    return finished


def finish(snapshot: RunSnapshot, result: RunResult, trouble: DivergedError | None) -> RunResult:
    engine = snapshot.engine
    engine.close()
    try:
        if trouble is not None:
            raise trouble
        snapshot.observer.finish()
    except DivergedError as error:
        result.status, result.message = "diverged", one_line(error)
    engine.meter.finish(result, engine.ledger, engine.calendar.now_s)
    engine.numerics.finish(result)
    return result
