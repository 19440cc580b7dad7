"""Elastic: stragglers are left out of a synchronous phase, and come back when they keep up again."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from polyrhythm.core import (
    Bounds,
    Cancel,
    Cluster,
    Decision,
    Decisions,
    Event,
    Joined,
    Left,
    Policy,
    Proceed,
    Report,
    Sync,
    Traits,
)
from polyrhythm.core.worker_map import WorkerMap
from polyrhythm.errors import SpecError
from polyrhythm.policies._lib.detector import Detector, DetectorState
from polyrhythm.policies._lib.epochs import still_known
from polyrhythm.policies._lib.roll import Roll
from polyrhythm.policies._lib.wrapping import ClockView, joint_traits, require_waiting
from polyrhythm.policies.switch import Switch


@dataclass(frozen=True, slots=True)
class ElasticState:
    """The wrapped policy's state, the roll of all workers, who straggles, and who is left `out`.

    `ending`: a worker has found no mini-batch left, and nobody has joined since. `named`: who is to stay out until the
    share is served.
    """

    last_policy: Policy[Any] | None
    inner: Any
    roll: Roll = field(default_factory=Roll)
    view: ClockView = field(default_factory=ClockView)
    watch: DetectorState = field(default_factory=DetectorState)
    out: WorkerMap[bool] = field(default_factory=WorkerMap)
    ending: bool = False
    named: WorkerMap[bool] = field(default_factory=WorkerMap)


@dataclass(frozen=True)
class Elastic(Policy[ElasticState]):
    """Sync-Switch's elastic policy: remove stragglers from a switch's synchronous part, and restore them afterwards.

    Before the last part of a sequence such as ``bsp@0.25,asp`` is due, a worker that the `Detector` names is not
    started again once it has reported and its contribution is combined: the wrapped policy is told that it has Left, so
    its barrier, mean and learning rate are those of the m workers that remain (a batch of m * B and, under the linear
    convention, m * eta). The wrapped policy sees one that comes back as Joined. At least half stay. When it comes back:

    - ``back="recovered"``, ours: when the detector clears it, when the last part begins, or when a worker has found no
      mini-batch left. Until then it makes **probe steps**, for which nobody waits: each is measured, and its gradient
      goes into the next update (``probes="drop"``: it is dropped and counted, and its samples are handed out again).
    - ``back="served"``, the paper's: when the last part begins, not before. Until then it makes no steps, and the
      detector compares the workers that remain. Only the end of the job or the loss of all others brings it back
      earlier; the end of an epoch does not.

    Args:
        policy: a sequence such as `Switch`; of another policy the whole workload is meant.
        detector: robust or sigma, the paper's method.
        window, patience, floor, sliding: see `Detector`; the paper's windows slide.
        probes: apply or drop; where replicas are exchanged or shares dealt they are always dropped. Only with
            ``back="recovered"``.
        back: recovered or served; served needs a sequence, in which the last part brings everyone back.

    Source: Sync-Switch (Li et al. 2021), section IV-B2; to the letter it is
    ``elastic:(switch:bsp@0.0625,asp),detector=sigma,sliding=true,back=served``, but for the half that stays.

    Example:
        >>> from polyrhythm.policies import parse_policy
        >>> parse_policy("elastic:(switch:bsp@0.25,asp),window=8").traits.cancels
        True
    """

    policy: Policy[Any] = Switch()  # noqa: RUF009 (a frozen value)
    detector: str = "robust"
    window: int = 4
    patience: int = 2
    floor: float = 0.25
    probes: str = "apply"
    back: str = "recovered"
    sliding: bool = False

    name: ClassVar[str] = "elastic"
    summary: ClassVar[str] = "a switch whose synchronous part leaves stragglers out"

    def __post_init__(self) -> None:
        self._detector()
        require_waiting(self.name, self.policy)
        if self.probes not in ("apply", "drop"):
            raise SpecError(f"probes must be apply or drop but got {self.probes!r}")
        if self.back not in ("recovered", "served"):
            raise SpecError(f"back must be recovered or served but got {self.back!r}")
        if self.back == "served":
            self.check_served()

    def check_served(self) -> None:
        if self.probes == "drop":
            raise SpecError(
                "probes=drop means nothing with back=served, under which who is left out makes no steps; "
                "leave out probes, or give back=recovered"
            )
        stages = self.policy.stages(Cluster(1))
        if len(stages) < 2:
            raise SpecError(
                f"back=served waits for the last part of a sequence, and {self.policy.spec!r} has one part; "
                "give a switch such as (switch:bsp@0.25,asp), or back=recovered"
            )
        for stage in stages[:-1]:
            if "replicas" in stage.policy.traits.exchanges:
                raise SpecError(
                    f"back=served leaves workers without steps, whose replicas grow old under {stage.policy.spec!r}; "
                    "give back=recovered, or parts on gradients before the last"
                )

    @property
    def traits(self) -> Traits:
        """Decisions depend on how late arrivals are; probe steps are on gradients, and may be cancelled."""
        joint = replace(joint_traits([self.policy]), placement="coordinator")
        if self.back == "served":
            return joint
        return replace(joint, exchanges=joint.exchanges | {"gradients"}, cancels=True)

    def _detector(self) -> Detector:
        return Detector(self.detector, self.window, self.patience, self.floor, sliding=self.sliding)

    def init(self, cluster: Cluster) -> ElasticState:
        stages = self.policy.stages(cluster)
        last_policy = stages[-1].policy if len(stages) > 1 else None
        return ElasticState(last_policy, self.policy.init(cluster))

    def in_force(self, state: ElasticState) -> Policy[Any]:
        """That of the wrapped policy: leaving a worker out is no switch."""
        return self.policy.in_force(state.inner)

    @property
    def counts_shares(self) -> bool:
        """As the policy within."""
        return self.policy.counts_shares

    def bounds(self, cluster: Cluster) -> Bounds:
        """None: who is left out neither advances nor reads with the others."""
        return Bounds()

    def decide(self, state: ElasticState, event: Event) -> tuple[ElasticState, Decisions]:
        compared = len(state.roll.live_workers) - (len(state.out) if self.back == "served" else 0)
        watch = self._detector().after(state.watch, event, compared)
        turn = Turn(self, replace(state, roll=state.roll.after(event), watch=watch), event.time_s)
        if isinstance(event, Report | Left) and event.worker in state.out:
            turn.hear_of_outsider(event)
        else:
            turn.tell(event, state.roll)
        turn.readmit(only_waiting=isinstance(event, Left))
        return turn.state, tuple(turn.decisions)


class Turn:
    """Decides about one event; lives no longer than that."""

    def __init__(self, policy: Elastic, state: ElasticState, time_s: float) -> None:
        self.policy, self.state, self.time_s = policy, state, time_s
        self.decisions: list[Decision] = []
        self.waiting: list[int] = []

    def hear_of_outsider(self, event: Report | Left) -> None:
        """A probe step is complete: keep it for the next update, or drop it; or the worker has gone."""
        worker = event.worker
        if isinstance(event, Left):
            ending = self.state.ending or is_end(event)
            self.state = replace(self.state, out=self.state.out.remove(worker), ending=ending)
            self._forget(event, len(self.state.roll.live_workers))
            return
        if not self._takes_late:
            self._do(Cancel((worker,)))
            self.waiting.append(worker)

    def tell(self, event: Event, before: Roll) -> None:
        """Let the wrapped policy decide, but for starting stragglers."""
        view, ending = self.state.view, self.state.ending or is_end(event)
        if isinstance(event, Left):
            self._forget(event, len(before.live_workers))
        if isinstance(event, Joined):
            insiders = replace(before, live_workers=without(before.live_workers, self.state.out))
            view, ending = view.follow(event, insiders), False
            self._forget(event, len(before.live_workers))
        self.state = replace(self.state, view=view, ending=ending)
        inner, decisions = self.policy.policy.decide(self.state.inner, self.state.view.seen(event))
        self.state = replace(self.state, inner=inner)
        for decision in decisions:
            if isinstance(decision, Proceed):
                self._start(decision)
            else:
                self._do(self._with_late(decision))

    def _forget(self, event: Joined | Left, live: int) -> None:
        """Who has only found no mini-batch in this epoch is the same worker in the next one."""
        self.state = replace(self.state, named=still_known(self.state.named, event, live))

    def _with_late(self, decision: Decision) -> Decision:
        """An update takes what outsiders have ready too."""
        if not isinstance(decision, Sync) or decision.what != "gradients" or decision.weights is not None:
            return decision
        late = tuple(worker for worker in self.state.out if self.state.roll.live_worker(worker).gradients)
        self.waiting += late
        return replace(decision, workers=(*decision.workers, *late)) if late else decision

    @property
    def _takes_late(self) -> bool:
        """Whether the gradient of a probe step is used; in an update with weights it has none."""
        traits = self.policy.policy.traits
        return self.policy.probes == "apply" and traits.exchanges == {"gradients"} and not traits.shares

    def readmit(self, only_waiting: bool) -> None:
        """Bring back who keeps up again, or everyone when leaving out has no sense any more; let the others probe.

        Of workers that find no mini-batch at one moment, those that are still to be heard of look as if they ran:
        with `only_waiting` nobody is brought back from a probe step.
        """
        state = self.state
        alone = bool(state.out) and len(state.out) == len(state.roll.live_workers)
        everyone = alone or (bool(state.out) and not self._active)
        if alone:  # they are the cluster now
            self.state = replace(state, named=WorkerMap())
        asked = tuple(state.out) if everyone else tuple(self.waiting)
        back = tuple(w for w in asked if everyone or not self._is_late(w))
        probing = tuple(w for w in back if state.roll.live_worker(w).running)
        if only_waiting:
            back, probing = tuple(w for w in back if w not in probing), ()
        for worker in back:
            if ready := len(state.roll.live_worker(worker).gradients):
                self._do(Sync((worker,) * ready))
        if probing:
            self._do(Cancel(probing))
        if back:
            self._admit(back)
        still = tuple(worker for worker in self.waiting if worker not in back)
        if still and self.policy.back == "recovered":
            self._do(Proceed(still))

    def _admit(self, workers: tuple[int, ...]) -> None:
        """Tell the wrapped policy that these have joined, at the smallest clock that it sees."""
        state = self.state
        out, view, roll = state.out, state.view, state.roll
        insiders = without(roll.live_workers, out)
        clock = min((live_worker.clock + view.of(w) for w, live_worker in insiders.items()), default=roll.clock)
        for worker in workers:
            out, view = out.remove(worker), view.put(worker, clock - roll.live_worker(worker).clock)
        inner, decisions = self.policy.policy.decide(state.inner, Joined(workers, self.time_s, clock))
        self.state = replace(state, inner=inner, out=out, view=view)
        for decision in decisions:
            self._do(decision)

    def _start(self, decision: Proceed) -> None:
        """Start those who keep up, and leave the others out."""
        late = tuple(worker for worker in decision.workers if self._is_out_of_time(worker))
        most = (len(self.state.roll.live_workers) + 1) // 2
        late = late[: max(0, len(self.state.roll.live_workers) - len(self.state.out) - most)]
        ready = tuple(worker for worker in decision.workers if worker not in late)
        if ready:  # shares are for all who were named
            self._do(replace(decision, workers=ready, shares=None) if late else decision)
        for worker in late:
            self._leave_out(worker)

    def _is_out_of_time(self, worker: int) -> bool:
        """Whether this worker straggles, and nothing of it would be lost if it went now."""
        live_worker = self.state.roll.live_worker(worker)
        return self._active and self._is_late(worker) and not live_worker.gradients and not live_worker.local

    def _is_late(self, worker: int) -> bool:
        return worker in self.state.watch.stragglers or worker in self.state.named

    def _leave_out(self, worker: int) -> None:
        state = self.state
        clock = state.roll.live_worker(worker).clock + state.view.of(worker)
        self.state = replace(state, out=state.out.set(worker, True))
        if self.policy.back == "served":
            self.state = replace(self.state, named=state.named.set(worker, True), watch=state.watch.forget(worker))
        self.waiting.append(worker)
        inner, decisions = self.policy.policy.decide(state.inner, Left(worker, self.time_s, clock, "removed"))
        self.state = replace(self.state, inner=inner)
        for decision in decisions:
            self._do(decision)

    @property
    def _active(self) -> bool:
        """Whether the part in force is not the last one, and the workload is not at its end."""
        return not self.state.ending and self.policy.policy.in_force(self.state.inner) != self.state.last_policy

    def _do(self, decision: Decision) -> None:
        self.decisions.append(decision)
        self.state = replace(self.state, roll=self.state.roll.carry_out((decision,)))


def is_end(event: Event) -> bool:
    return isinstance(event, Left) and event.reason == "finished"


def without(live_workers: WorkerMap[Any], out: WorkerMap[bool]) -> WorkerMap[Any]:
    for worker in out:
        live_workers = live_workers.remove(worker)
    return live_workers
