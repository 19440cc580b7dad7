"""The answer for a job with stages and replicas: its steps are played again with some durations made ideal.

The ideal of an operation is the mean of its kind over all replicas, stages and steps; of an exchange, the median of
what it takes once all are there.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrhythm.doctor.diagnosis import DoctorAnswer, WhatIf
from polyrhythm.doctor.evidence import Evidence
from polyrhythm.doctor.outlook import TODAY, Prospect, prospects
from polyrhythm.doctor.pipeline_clocks import aligned
from polyrhythm.doctor.pipeline_graph import COLLECTIVES, COMPUTE, MESSAGES, PipelineGraph, graph_of
from polyrhythm.doctor.readers.operations import Lanes, Operations
from polyrhythm.telemetry.numbers import share

SLOW = 1.05
"""Slowdown over the ideal below which there is nothing to look for."""

MAINLY = 0.5
"""Share of the slowdown that has to go with a cause."""

ALIKE = 0.15
"""Two causes whose shares differ by less explain the same."""

PAUSED = 2.0
"""Times as long as usual on its rank, from which a computation has been held up."""

FAITHFUL = 0.05
"""Share of a step by which playing the trace again may differ from what was measured."""


class Blame(NamedTuple):
    """What goes if one thing is made ideal, as a share of all that is lost."""

    what: str
    share: float


class Where(NamedTuple):
    """Operations of a replica; None is all."""

    rows: NDArray[np.int64] | None = None
    replica: int | None = None


class PipelineReplay:
    """A trace that can be played again."""

    def __init__(self, trace: Operations) -> None:
        self.trace, self.graph = trace, graph_of(trace)
        self.real_s = self.graph.exchange_s
        self.ideal_s = ideal(trace, self.graph)
        self.now_s = self.mean_s(self.real_s)
        self.best_s = self.mean_s(self.ideal_s)

    def mean_s(self, took_s: Lanes) -> float:
        return float(self.graph.step_s(took_s).max(axis=0).mean())

    @property
    def slowdown(self) -> float:
        return self.now_s / self.best_s

    def only(self, where: Where) -> float:
        """Slowdown if only these keep what they took."""
        return self.mean_s(mixed(self.ideal_s, self.real_s, where)) / self.best_s

    def without(self, where: Where) -> float:
        """Seconds of a step if these are ideal."""
        return self.mean_s(mixed(self.real_s, self.ideal_s, where))

    def blame(self, what: str, took_s: float) -> Blame:
        return Blame(what, (self.now_s - took_s) / max(self.now_s - self.best_s, 1e-12))


def mixed(took_s: Lanes, other_s: Lanes, where: Where) -> Lanes:
    """The first, and the second where it is asked for."""
    rows = np.arange(len(took_s)) if where.rows is None else where.rows
    replicas = np.arange(took_s.shape[1]) if where.replica is None else np.array([where.replica])
    made = took_s.copy()
    made[np.ix_(rows, replicas)] = other_s[np.ix_(rows, replicas)]
    return made


def ideal(trace: Operations, graph: PipelineGraph) -> Lanes:
    kinds = np.array([name.kind for name in trace.names])
    made = np.empty_like(graph.exchange_s)
    for kind in np.unique(kinds):
        rows = kinds == kind
        middle = np.median if kind in (*COLLECTIVES, *MESSAGES) else np.mean
        made[rows] = middle(graph.exchange_s[rows])
    return made


def diagnose_pipeline(trace: Operations, policies: Sequence[str] = ()) -> DoctorAnswer:
    """Which rank, stage, replica or micro-batches hold a job up, in which operation, and whether a policy helps."""
    trace = aligned(trace)
    replay = PipelineReplay(trace)
    ratio = replay.now_s / float(trace.step_s.mean())
    if abs(ratio - 1) > FAITHFUL:
        return unlike(trace, replay, ratio)
    rows = prospects(replicas(trace, replay.graph), policies) if trace.replicas > 1 else []
    chosen = next((row for row in rows if row.chosen), None)
    cause = main_cause(replay) if replay.slowdown >= SLOW else None
    return DoctorAnswer(
        verdict=cause.verdict
        if cause
        else f"No rank or stage is slow: a step takes {replay.slowdown:.2f} of its ideal.",
        why=[*(cause.why if cause else []), *by_replica(replay)],
        next_step=" ".join(filter(None, [cause.remedy if cause else "", policy_line(chosen)])),
        enough=True,
        facts=pipeline_facts(trace, replay),
        prospects=rows,
        what_ifs=pipeline_what_ifs(replay),
        notes=list(trace.notes),
        unit="replicas' steps",
    )


def unlike(trace: Operations, replay: PipelineReplay, ratio: float) -> DoctorAnswer:
    return DoctorAnswer(
        verdict=f"Not enough evidence: played again, a step takes {ratio:.2f} of what was measured.",
        why=["Something that the trace does not name holds the job up, such as the loader or the launch of kernels."],
        next_step="Trace what is between the operations, too.",
        enough=False,
        facts=pipeline_facts(trace, replay),
        notes=list(trace.notes),
    )


def policy_line(chosen: Prospect | None) -> str:
    if chosen is None:
        return "There is one replica, so no policy here has anything to decide."
    if chosen.policy == TODAY:
        return "No policy here helps."
    return (
        f"Among the replicas, {chosen.policy} would process {share(chosen.gain)} more ({chosen.price}); "
        "polyrhythm run does not run models in stages."
    )


class Cause(NamedTuple):
    verdict: str
    why: list[str]
    remedy: str


def main_cause(replay: PipelineReplay) -> Cause:
    """The narrowest thing that explains most of what is lost: one rank, one stage, the micro-batches, one replica."""
    found = causes(replay)
    kind = operation(replay)
    why = [f"{blame.what}: with it at the ideal, {share(blame.share)} of the loss goes" for blame in found.values()]
    why.append(f"most of it is in {kind}")
    name = narrowest({name: blame.share for name, blame in found.items()})
    lost = share(1 - 1 / replay.slowdown)
    if not name:
        text = f"No single rank, stage or replica explains why the job takes {replay.slowdown:.2f} of its ideal."
        return Cause(text, why, "Look at the operation first: its time varies everywhere.")
    what = found[name].what
    sentence = SENTENCES[name].format(what=what[0].upper() + what[1:], kind=kind)
    return Cause(f"{sentence}, which costs {lost} of the job.", why, REMEDY[name])


def causes(replay: PipelineReplay) -> dict[str, Blame]:
    """From the narrowest to the widest; of one replica nobody can tell a slow rank from a stage with much to do."""
    found = {
        "rank": worst(replay, ranks(replay)),
        "stage": worst(replay, stages(replay)),
        "micro-batches": replay.blame("micro-batches", replay.mean_s(even_batches(replay))),
        "pauses": replay.blame("single late computations", replay.mean_s(without_pauses(replay))),
        "replica": worst(replay, {f"replica {i}": Where(replica=i) for i in range(replay.trace.replicas)}),
    }
    if replay.trace.replicas == 1:
        return {"only stage": found["stage"], "micro-batches": found["micro-batches"], "pauses": found["pauses"]}
    return found


def narrowest(shares: Mapping[str, float]) -> str:
    """Of the causes that explain about as much as the best one the first, which is the narrowest; maybe none.

    >>> narrowest({"rank": 0.97, "stage": 1.01, "replica": 0.99}), narrowest({"rank": 0.1, "stage": 0.3})
    ('rank', '')
    """
    best = max(shares.values())
    return next((name for name, value in shares.items() if value >= max(MAINLY, best - ALIKE)), "")


SENTENCES = {
    "rank": "{what} is slow in {kind}",
    "stage": "{what} has too much to do in {kind}, on all replicas alike",
    "only stage": "{what} takes longest in {kind}",
    "micro-batches": "{what} are not alike in {kind}, on whichever replica they fall",
    "pauses": "Ranks stand still now and then in {kind}",
    "replica": "{what} is slow in {kind}",
}
REMEDY = {
    "rank": "Look at the machine of this rank: what else runs there, its clock rates and its temperature.",
    "stage": "Move layers from this stage to the others, or split what it has more of than they.",
    "only stage": "Look at the machine of this stage, then at how much it has to do; one replica tells no more.",
    "micro-batches": "Put samples of like length into one micro-batch, or the same number of tokens into each.",
    "pauses": "Look for what stops an interpreter now and then: garbage collection (gc.freeze(), or in all at once).",
    "replica": "Look at the hosts of this replica, and at the samples that it gets.",
}


def worst(replay: PipelineReplay, candidates: Mapping[str, Where]) -> Blame:
    blames = [replay.blame(what, replay.without(where)) for what, where in candidates.items()]
    return max(blames, key=lambda blame: blame.share)


def stages(replay: PipelineReplay) -> dict[str, Where]:
    return {f"stage {stage}": Where(replay.trace.rows(stage=stage)) for stage in range(replay.trace.stages)}


def ranks(replay: PipelineReplay) -> dict[str, Where]:
    """The rank that takes longest of each stage; others cannot be what holds all up."""
    trace, found = replay.trace, dict[str, Where]()
    for stage in range(trace.stages):
        rows = trace.rows(stage=stage)
        computed = [row for row in rows if trace.names[row].kind in COMPUTE]
        slowest = int(replay.real_s[computed].sum(axis=(0, 2)).argmax())
        rank = trace.ranks[slowest, stage]
        name = f"rank {rank} (replica {slowest}, stage {stage})" if rank >= 0 else f"replica {slowest} on stage {stage}"
        found[name] = Where(rows, slowest)
    return found


def even_batches(replay: PipelineReplay) -> Lanes:
    """What operations took, but for what a micro-batch takes longer than others of its replica, there and back.

    Forward and backward pass of a long micro-batch are long on all stages; what only one of them takes longer is not
    the micro-batch's.
    """
    trace, took_s = replay.trace, replay.real_s.copy()
    excess = np.log(np.maximum(took_s, 1e-12) / np.maximum(usual(replay), 1e-12))
    batches = [batch for batch in np.unique(trace.micro_batch) if batch >= 0]
    shared = np.array([common(trace, excess, batch) for batch in batches])
    if not len(shared) or not vary_within(shared):
        return took_s
    for batch, factor in zip(batches, np.exp(shared), strict=True):
        took_s[computed(trace, batch)] /= factor
    return took_s


def common(trace: Operations, excess: Lanes, batch: int) -> NDArray[np.float64]:
    """By how much both passes of a micro-batch differ from the usual, by replica and step; a logarithm."""
    rows = [computed(trace, batch, kind) for kind in COMPUTE]
    forth, back = (np.median(excess[each], axis=0) if len(each) else np.zeros(excess.shape[1:]) for each in rows)
    smaller = np.minimum(np.abs(forth), np.abs(back))
    return np.asarray(np.where(np.sign(forth) == np.sign(back), np.sign(forth) * smaller, 0.0))


def vary_within(shared: NDArray[np.float64]) -> bool:
    """Whether micro-batches of one step differ more than steps do: a slow step of a replica is no long micro-batch."""
    middle = np.median(shared, axis=0)
    return bool(np.abs(shared - middle).mean() > np.abs(middle).mean())


def computed(trace: Operations, batch: int, kind: str = "") -> NDArray[np.int64]:
    kinds = (kind,) if kind else COMPUTE
    return np.array([r for r, name in enumerate(trace.names) if name.kind in kinds and trace.micro_batch[r] == batch])


def usual(replay: PipelineReplay) -> Lanes:
    """The median of each operation's kind on its rank."""
    trace, made = replay.trace, np.empty_like(replay.real_s)
    for key in {(name.kind, name.stage) for name in trace.names}:
        rows = trace.rows(kind=key[0], stage=key[1])
        made[rows] = np.median(replay.real_s[rows], axis=(0, 2))[None, :, None]
    return made


def without_pauses(replay: PipelineReplay) -> Lanes:
    """What operations took, but for computations that took far longer than they usually do on their rank."""
    took_s, usual_s = replay.real_s.copy(), usual(replay)
    paused = took_s > PAUSED * usual_s
    paused[[row for row, name in enumerate(replay.trace.names) if name.kind not in COMPUTE]] = False
    return np.where(paused, usual_s, took_s)


def operation(replay: PipelineReplay) -> str:
    """The kind of operation that alone would slow the job most."""
    kinds = dict.fromkeys(name.kind for name in replay.trace.names)
    return max(kinds, key=lambda kind: replay.only(Where(replay.trace.rows(kind=kind))))


def by_replica(replay: PipelineReplay) -> list[str]:
    """Slowdown if only one replica keeps what it took."""
    alone = [replay.only(Where(replica=replica)) for replica in range(replay.trace.replicas)]
    figures = ", ".join(f"{value:.3f}" for value in alone)
    return [f"with only one replica as it is and the others ideal, a step takes {figures} of its ideal, by replica"]


def pipeline_what_ifs(replay: PipelineReplay) -> list[WhatIf]:
    trace = replay.trace
    slowest = int(np.argmax([replay.only(Where(replica=replica)) for replica in range(trace.replicas)]))
    changes = {
        "all replicas at the pace of the ideal": replay.best_s,
        f"replica {slowest} at the pace of the ideal": replay.without(Where(replica=slowest)),
    }
    what_ifs = [WhatIf(change=name, step_s=took_s, gain=replay.now_s / took_s - 1) for name, took_s in changes.items()]
    if trace.replicas > 1:
        others = [replica for replica in range(trace.replicas) if replica != slowest]
        took_s = float(replay.graph.step_s(replay.real_s, apart=True)[others].max(axis=0).mean())
        less = len(others) / trace.replicas
        gain = less * replay.now_s / took_s - 1
        what_ifs.append(WhatIf(change=f"without replica {slowest}", step_s=took_s, gain=gain))
    return what_ifs


def replicas(trace: Operations, graph: PipelineGraph) -> Evidence:
    """Replicas as the workers of a policy: what each would take if it waited for no other."""
    alone_s = graph.step_s(graph.exchange_s, apart=True)
    zero = np.zeros_like(alone_s)
    return Evidence(
        trace.source,
        tuple(range(trace.replicas)),
        (),
        np.cumsum(np.tile(alone_s.max(axis=0), (trace.replicas, 1)), axis=1),
        {"computing": alone_s},
        alone_s.max(axis=0) - alone_s,
        zero,
    )


def pipeline_facts(trace: Operations, replay: PipelineReplay) -> dict[str, str]:
    replicas_, stages_ = trace.replicas, trace.stages
    measured: NDArray[np.float64] = trace.step_s
    return {
        "read": trace.source,
        "ranks": f"{replicas_} replicas of {stages_} stages",
        "steps": f"{len(trace.steps)}, {measured.mean():.3f} s each; played again {replay.now_s:.3f} s",
        "ideal": f"{replay.best_s:.3f} s a step, so the job takes {replay.slowdown:.3f} of it",
    }
