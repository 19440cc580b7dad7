"""Traces of pipelines that never ran, with the columns of StragglerAnalysis: one forward, one backward at a time."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet as parquet

FORWARD, BACKWARD = "forward-compute", "backward-compute"
MESSAGE_S, GATHER_S, SCATTER_S = 0.001, 0.01, 0.03

Duration = Callable[[int, int, int, str, int], float]
"""Of a computation: by replica, stage, step, kind and micro-batch."""


def even(replica: int, stage: int, step: int, kind: str, batch: int) -> float:
    return 0.1 if kind == FORWARD else 0.2


def order(stages: int, stage: int, batches: int) -> list[tuple[str, int]]:
    """What a stage computes, one after the other."""
    ahead = min(stages - 1 - stage, batches)
    made = [(FORWARD, batch) for batch in range(ahead)]
    for batch in range(batches):
        made += [(FORWARD, batch + ahead)] if batch + ahead < batches else []
        made.append((BACKWARD, batch))
    return made


class Pipeline:
    """Rows of a trace; `took` says how long computations take."""

    def __init__(
        self, took: Duration = even, replicas: int = 2, stages: int = 3, batches: int = 6, steps: int = 4
    ) -> None:
        self.took, self.replicas, self.stages, self.batches = took, replicas, stages, batches
        self.rows: list[dict[str, Any]] = []
        self.seen: Counter[tuple[int, int, int, str]] = Counter()
        self.step_s: list[float] = []
        now_s = 1000.0
        for step in range(steps):
            end_s = self.play(step, now_s)
            self.step_s.append(end_s - now_s)
            now_s = end_s + 5.0

    def add(
        self, replica: int, stage: int, step: int, kind: str, start_s: float, end_s: float, batch: int = -1
    ) -> float:
        seen = self.seen[replica, stage, step, kind]
        self.seen[replica, stage, step, kind] += 1
        rank = stage * self.replicas + replica
        self.rows.append(
            {"dp_rank": replica, "stage": stage, "rank": rank, "step": step, "optype": kind, "start_ts": start_s}
            | {"duration": end_s - start_s, "seq_id": seen, "mc": 0, "mb_id": batch, "gmc": stage}
        )
        return end_s

    def play(self, step: int, begin_s: float) -> float:
        """One step; when it is over."""
        lasts = []
        for replica in range(self.replicas):
            gathered = {
                s: self.add(replica, s, step, "params-all-gather", begin_s, begin_s + GATHER_S)
                for s in range(self.stages)
            }
            lasts.append(self.compute(replica, step, gathered))
        stages = range(self.stages)
        joined = [max(last[0], last[self.stages - 1]) + MESSAGE_S for last in lasts]
        for replica, last in enumerate(lasts):
            for stage in (0, self.stages - 1):
                last[stage] = self.add(replica, stage, step, "embedding-grads-all-reduce", last[stage], joined[replica])
        for stage in stages:
            there_s = max(last[stage] for last in lasts) + SCATTER_S
            for replica, last in enumerate(lasts):
                last[stage] = self.add(replica, stage, step, "grads-reduce-scatter", last[stage], there_s)
        all_s = max(max(last.values()) for last in lasts) + MESSAGE_S
        for replica, last in enumerate(lasts):
            for stage in stages:
                self.add(replica, stage, step, "optimizer-clip-main-grad", last[stage], all_s)
                self.add(replica, stage, step, "optimizer", all_s, all_s + 0.01)
        return all_s + 0.01

    def compute(self, replica: int, step: int, free: dict[int, float]) -> dict[int, float]:
        """All computations and messages of a replica; when each stage is through."""
        todo = {stage: order(self.stages, stage, self.batches) for stage in range(self.stages)}
        sent: dict[tuple[str, int, int], float] = {}
        while any(todo.values()):
            for stage, left in todo.items():
                while left and self.ready(stage, left[0], sent):
                    self.one(replica, stage, step, *left.pop(0), sent, free)
        return free

    def ready(self, stage: int, work: tuple[str, int], sent: dict[tuple[str, int, int], float]) -> bool:
        kind, batch = work
        source = stage - 1 if kind == FORWARD else stage + 1
        return not 0 <= source < self.stages or (kind, source, batch) in sent

    def one(
        self,
        replica: int,
        stage: int,
        step: int,
        kind: str,
        batch: int,
        sent: dict[tuple[str, int, int], float],
        free: dict[int, float],
    ) -> None:
        name, source = kind[:-8], stage - 1 if kind == FORWARD else stage + 1
        if 0 <= source < self.stages:
            ready_s = sent[kind, source, batch]
            end_s = max(ready_s, free[stage]) + MESSAGE_S
            self.add(replica, source, step, f"{name}-send", ready_s, end_s)
            free[stage] = self.add(replica, stage, step, f"{name}-recv", free[stage], end_s)
        end_s = free[stage] + self.took(replica, stage, step, kind, batch)
        free[stage] = sent[kind, stage, batch] = self.add(replica, stage, step, kind, free[stage], end_s, batch)

    def save(self, folder: Path, name: str = "made", seed: int = 0) -> Path:
        """The rows in any order, with their sizes beside them."""
        path = folder / f"trace-{name}.parquet"
        shuffled = [self.rows[i] for i in np.random.default_rng(seed).permutation(len(self.rows))]
        parquet.write_table(pyarrow.Table.from_pylist(shuffled), path)
        sizes = {"dp_size": self.replicas, "pp_size": self.stages, "tp_size": 1}
        text = "trial_name: made\n" + "".join(f"{key}: {value}\n" for key, value in sizes.items())
        (folder / f"meta-{name}.yaml").write_text(text, encoding="utf-8")
        return path
