"""What waits for what in a step of a pipeline: read off the order of a trace, and played again with other durations.

On a stage the computations follow one another, and so do the messages of one direction. A message that is received lets
the computation begin that it is for, one that is sent follows the computation that made it. Anything else begins after
the last computation that was always over when it began. A message ends for both sides together, an exchange for all of
its members; what it takes is counted from when the last of them was there.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from polyrhythm.doctor.readers.operations import Lanes, Operations
from polyrhythm.errors import TraceError

FORWARD, BACKWARD = "forward-compute", "backward-compute"
COMPUTE = (FORWARD, BACKWARD)
MESSAGES = ("forward-send", "forward-recv", "backward-send", "backward-recv")
GATHER = "params-all-gather"
SCATTER = "grads-reduce-scatter"
EMBEDDING = "embedding-grads-all-reduce"
CLIP = "optimizer-clip-main-grad"
AMONG_REPLICAS = (GATHER, SCATTER, "separate-grads-all-reduce", CLIP)
COLLECTIVES = (*AMONG_REPLICAS, EMBEDDING, "layernorm-grads-all-reduce")

CLOCKS_S = 5e-4
"""By so much clocks of two hosts may differ."""

ALWAYS = 0.95
"""Share of replicas and steps in which an order must be seen."""


@dataclass(frozen=True, eq=False)
class PipelineGraph:
    """What waits for what.

    Args:
        groups: operations that end together, each group after all that it waits for.
        after: what each operation waits for.
        joint: whether an operation begins when the last of its group is there.
        among_replicas: whether its group is of all replicas.
        exchange_s: what joint operations take from then on; the duration of all others.
    """

    groups: tuple[tuple[int, ...], ...]
    after: tuple[tuple[int, ...], ...]
    joint: NDArray[np.bool_]
    among_replicas: NDArray[np.bool_]
    exchange_s: Lanes

    def step_s(self, took_s: Lanes, apart: bool = False) -> NDArray[np.float64]:
        """Seconds by replica and step if operations take so long; `apart`: no replica waits for another."""
        end_s = np.zeros_like(took_s)
        for group in self.groups:
            begin_s = {row: self._begin(row, end_s) for row in group}
            if self.joint[group[0]]:
                last_s = np.asarray(np.max(list(begin_s.values()), axis=0))
                if self.among_replicas[group[0]] and not apart:
                    last_s = np.broadcast_to(last_s.max(axis=0), last_s.shape)
                begin_s = dict.fromkeys(group, last_s)
            for row in group:
                end_s[row] = begin_s[row] + took_s[row]
        return np.asarray(end_s.max(axis=0))

    def _begin(self, row: int, end_s: Lanes) -> NDArray[np.float64]:
        before = self.after[row]
        return np.asarray(end_s[list(before)].max(axis=0) if before else np.zeros(end_s.shape[1:]))


def graph_of(trace: Operations) -> PipelineGraph:
    """The graph of a trace."""
    builder = GraphBuilder(trace)
    for stage in range(trace.stages):
        builder.add_stage(stage)
    builder.join()
    return builder.graph()


class GraphBuilder:
    def __init__(self, trace: Operations) -> None:
        self._trace = trace
        offset = trace.start_s.min(axis=(0, 1))
        self._usual_s = np.median(trace.start_s - offset, axis=(1, 2))
        self._after: list[set[int]] = [set() for _ in trace.names]
        self._partner: dict[int, int] = {}
        self._messages: dict[tuple[str, int], list[int]] = defaultdict(list)

    def in_order(self, stage: int, kinds: Sequence[str]) -> list[int]:
        rows = [row for row, name in enumerate(self._trace.names) if name.stage == stage and name.kind in kinds]
        return sorted(rows, key=lambda row: (self._usual_s[row], self._trace.names[row].number))

    def chain(self, rows: Sequence[int]) -> None:
        for before, row in pairwise(rows):
            self._after[row].add(before)

    def add_stage(self, stage: int) -> None:
        computes = self.in_order(stage, COMPUTE)
        if not computes:
            raise TraceError(f"{self._trace.source} has no {FORWARD} on stage {stage}; give a trace of whole steps")
        self.chain(computes)
        for kind in MESSAGES:
            messages = self.in_order(stage, (kind,))
            self.chain(messages)
            self.match(kind, stage, messages, [c for c in computes if self._trace.names[c].kind.startswith(kind[:7])])
        self.add_rest(stage, computes)

    def match(self, kind: str, stage: int, messages: list[int], computes: list[int]) -> None:
        """Each message belongs to one computation of its direction; some were recorded that never went."""
        trace, receives = self._trace, kind.endswith("recv")
        real = messages if len(messages) <= len(computes) else self.gone(messages, computes, receives)
        if real and len(real) not in (len(computes), len(computes) - 1):
            raise TraceError(
                f"{trace.source} has {len(real)} {kind} for {len(computes)} computations on stage {stage}; "
                "give a trace of whole steps"
            )
        pairs = zip(real, computes[len(computes) - len(real) :] if receives else computes, strict=False)
        for message, compute in pairs:
            if receives:
                self._after[compute].add(message)
            else:
                self._after[message].add(compute)
            if self.has_peer(kind, compute):
                self._messages[kind, stage].append(message)

    def gone(self, messages: list[int], computes: list[int], receives: bool) -> list[int]:
        """Messages that can have gone: none comes after the last computation, or goes before the first is over."""
        if receives:
            return [m for m in messages if self._usual_s[m] <= self._usual_s[computes[-1]] + CLOCKS_S]
        return [m for m in messages if self.usual_end(m) >= self.usual_end(computes[0]) - CLOCKS_S]

    def has_peer(self, kind: str, compute: int) -> bool:
        """Whether the model goes on beyond this part of it, where the message goes to or comes from."""
        parts = self._trace.stages * (1 + max(0, int(self._trace.chunk.max())))
        part = max(0, int(self._trace.chunk[compute])) * self._trace.stages + self._trace.names[compute].stage
        return 0 <= part + step_of(kind) < parts

    def usual_end(self, row: int) -> float:
        return float(self._usual_s[row] + np.median(self._trace.duration_s[row]))

    def add_rest(self, stage: int, computes: list[int]) -> None:
        """Gathers come before the computation that needs them, messages and the rest after what was over."""
        gathers = self.in_order(stage, (GATHER,))
        self.chain(gathers)
        for gather in gathers:
            later = [c for c in computes if self._usual_s[c] >= self.usual_end(gather) - CLOCKS_S]
            if later:
                self._after[later[0]].add(gather)
        rest = sorted(
            (
                row
                for row, name in enumerate(self._trace.names)
                if name.stage == stage and name.kind not in (*COMPUTE, *MESSAGES, GATHER)
            ),
            key=lambda row: self._usual_s[row],
        )
        self.chain(rest)
        for row in [*rest, *self.in_order(stage, MESSAGES)]:
            self.follow(row, computes)

    def follow(self, row: int, computes: list[int]) -> None:
        start_s, end_s = self._trace.start_s[row], self._trace.end_s
        over = [c for c in computes if (end_s[c] <= start_s + CLOCKS_S).mean() >= ALWAYS]
        if over and row not in self._after[over[-1]]:
            self._after[row].add(over[-1])

    def join(self) -> None:
        for kind in MESSAGES:
            if not kind.endswith("send"):
                continue
            for stage in range(self._trace.stages):
                peer = (stage + step_of(kind)) % self._trace.stages
                sent, got = self._messages[kind, stage], self._messages[kind[:-4] + "recv", peer]
                if len(sent) != len(got):
                    raise TraceError(
                        f"{self._trace.source}: stage {stage} has {len(sent)} {kind} and stage {peer} receives "
                        f"{len(got)}; give a trace of whole steps"
                    )
                self._partner.update(zip(sent, got, strict=True))

    def groups(self) -> list[tuple[int, ...]]:
        names = self._trace.names
        pairs = [tuple(pair) for pair in self._partner.items()]
        together: dict[tuple[str, int], list[int]] = defaultdict(list)
        for row, name in enumerate(names):
            if name.kind in (EMBEDDING, CLIP):
                together[name.kind, name.number].append(row)
        joined = [*pairs, *map(tuple, together.values())]
        taken = {row for group in joined for row in group}
        return [*joined, *((row,) for row in range(len(names)) if row not in taken)]

    def graph(self) -> PipelineGraph:
        trace, groups = self._trace, self.groups()
        of = {row: number for number, group in enumerate(groups) for row in group}
        needs = {
            number: {of[before] for row in group for before in self._after[row]} - {number}
            for number, group in enumerate(groups)
        }
        try:
            order = list(TopologicalSorter(needs).static_order())
        except CycleError as error:
            row = groups[error.args[1][0]][0]
            raise TraceError(
                f"{trace.source}: {trace.names[row].kind} {trace.names[row].number} of stage {trace.names[row].stage} "
                "waits for itself; are its clocks apart?"
            ) from error
        kinds = [name.kind for name in trace.names]
        wide = np.array([kind in AMONG_REPLICAS for kind in kinds])
        joint = np.array([kind in (*AMONG_REPLICAS, EMBEDDING) or kind in MESSAGES for kind in kinds])
        return PipelineGraph(
            tuple(groups[number] for number in order),
            tuple(tuple(sorted(before)) for before in self._after),
            joint,
            wide,
            self.exchanges(groups, joint, wide),
        )

    def exchanges(self, groups: Sequence[tuple[int, ...]], joint: NDArray[np.bool_], wide: NDArray[np.bool_]) -> Lanes:
        trace = self._trace
        took_s = trace.duration_s.copy()
        for group in groups:
            if joint[group[0]]:
                last_s = trace.start_s[list(group)].max(axis=0)
                last_s = np.broadcast_to(last_s.max(axis=0), last_s.shape) if wide[group[0]] else last_s
                took_s[list(group)] = np.maximum(0.0, trace.end_s[list(group)] - last_s)
        return took_s


def step_of(kind: str) -> int:
    """From a stage to that of its peer.

    >>> [step_of(kind) for kind in MESSAGES]
    [1, -1, -1, 1]
    """
    return 1 if kind in ("forward-send", "backward-recv") else -1
