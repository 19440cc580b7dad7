"""Evidence from what the watcher has kept: one ring a rank."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from polyrhythm.doctor.evidence import Evidence
from polyrhythm.doctor.marks import RankMarks, StepMarks, evidence_of
from polyrhythm.doctor.readers.connections import links_beside
from polyrhythm.doctor.watch.ring import RingHeader, RingRecord, read_ring
from polyrhythm.errors import TraceError


def read_rings(paths: Sequence[Path]) -> Evidence:
    """The steps that all ranks have kept."""
    rings = [read_ring(path) for path in paths]
    headers = [header for header, _ in rings]
    if len(rings) > 1 and not any(records for _, records in rings):
        raise TraceError(
            f"{paths[0].parent}: {len(rings)} ranks have joined a group, and no steps with an exchange were seen; does "
            "the script wrap its model in DistributedDataParallel? (docs/guides/doctor.md says what is not seen)"
        )
    evidence = evidence_of(
        f"{paths[0].parent}, {len(paths)} ranks watched",
        [marks_of(*ring) for ring in rings],
        batch_size=max(header.batch for header in headers) or None,
        world=max(header.ranks for header in headers),
    )
    links = links_beside(paths, [(header.rank, header.host) for header in headers])
    return replace(evidence, links=links, notes=(*overwritten(rings), *evidence.notes))


def overwritten(rings: Sequence[tuple[RingHeader, Sequence[RingRecord]]]) -> tuple[str, ...]:
    """What a long job has written over in its rings."""
    made = max(header.records for header, _ in rings)
    kept = max(len(records) for _, records in rings)
    return (f"a rank keeps its last {kept:,} steps; the {made - kept:,} before them are gone",) if made > kept else ()


def marks_of(header: RingHeader, records: Sequence[RingRecord]) -> RankMarks:
    return RankMarks(header.rank, header.host, header.clock, {one.step: step_marks(one) for one in records})


def step_marks(record: RingRecord) -> StepMarks:
    sections = {
        "forward pass": record.forward_s,
        "backward pass": record.backward_s,
        "optimizer": record.optimizer_s,
    }
    return StepMarks(record.arrival_s, record.end_s, record.loading_s, record.pause_s, record.other_s, detail=sections)
