"""Sets the clocks of a pipeline's ranks by what ends at one moment for several of them."""

from dataclasses import replace

import numpy as np

from polyrhythm.doctor.pipeline_graph import CLIP, EMBEDDING, GATHER, MESSAGES, SCATTER
from polyrhythm.doctor.readers.operations import Lanes, Operations

APART_S = 5e-3
"""Clocks that differ by less are left alone: the ends of one exchange do, too."""

AMONG = (GATHER, SCATTER, CLIP)
"""Exchanges among the replicas of a stage, those that end most sharply first."""


def aligned(trace: Operations) -> Operations:
    """The trace on the clock of the first rank, step by step; as it is if its clocks agree."""
    shift_s = shifts(trace)
    worst_s = float(np.abs(shift_s).max())
    if worst_s <= APART_S:
        return trace
    stages = np.array([name.stage for name in trace.names])
    note = f"the clocks of the ranks are up to {worst_s:.3g} s apart; their exchanges have set them"
    return replace(trace, start_s=trace.start_s + shift_s[stages], notes=(*trace.notes, note))


def shifts(trace: Operations) -> Lanes:
    """What to add to the times of each stage, replica and step."""
    made = np.zeros((trace.stages, *trace.start_s.shape[1:]))
    for stage in range(trace.stages):
        made[stage] = among_replicas(trace, stage)
    for stage in range(1, trace.stages):
        ends = [trace.end_s[rows] + made[where] for where, rows in between_stages(trace, stage)]
        if ends:
            before, after = ends
            made[stage] += np.median(before - after, axis=(0, 1))
    return made


def among_replicas(trace: Operations, stage: int) -> Lanes:
    """So that exchanges of all replicas of a stage end for all when they do for the first."""
    for kind in AMONG:
        if len(rows := trace.rows(kind=kind, stage=stage)):
            ends = trace.end_s[rows]
            return np.asarray(np.median(ends[:, :1] - ends, axis=0))
    return np.zeros(trace.start_s.shape[1:])


def between_stages(trace: Operations, stage: int) -> list[tuple[int, np.ndarray]]:
    """What a stage and the one before end together: an exchange of all stages, or messages that are all there."""
    pairs = [(kind, kind) for kind in (CLIP, EMBEDDING)] + [(MESSAGES[0], MESSAGES[1]), (MESSAGES[3], MESSAGES[2])]
    for first, second in pairs:
        before, after = trace.rows(kind=first, stage=stage - 1), trace.rows(kind=second, stage=stage)
        if len(before) and len(before) == len(after):
            return [(stage - 1, before), (stage, after)]
    return []
