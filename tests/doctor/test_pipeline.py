from pathlib import Path

import numpy as np
import pytest

from polyrhythm.doctor.pipeline import PipelineReplay, Where, diagnose_pipeline
from polyrhythm.doctor.readers.operations import read_operations
from tests.doctor.pipelines import BACKWARD, FORWARD, Duration, Pipeline, even


def slow_rank(replica: int, stage: int, step: int, kind: str, batch: int) -> float:
    return even(replica, stage, step, kind, batch) * (2.0 if (replica, stage) == (1, 1) else 1.0)


def long_stage(replica: int, stage: int, step: int, kind: str, batch: int) -> float:
    return even(replica, stage, step, kind, batch) * (1.6 if stage == 2 else 1.0)


def long_samples(replica: int, stage: int, step: int, kind: str, batch: int) -> float:
    factor = np.random.default_rng((replica, step, batch)).choice([0.6, 1.0, 3.0])
    return even(replica, stage, step, kind, batch) * float(factor)


def slow_backward(replica: int, stage: int, step: int, kind: str, batch: int) -> float:
    return even(replica, stage, step, kind, batch) * (3.0 if kind == BACKWARD and (replica, stage) == (0, 0) else 1.0)


@pytest.mark.parametrize("took", [even, slow_rank, long_stage, long_samples])
def test_a_trace_that_is_played_again_takes_as_long(tmp_path: Path, took: Duration) -> None:
    made = Pipeline(took)
    replay = PipelineReplay(read_operations(made.save(tmp_path)))
    assert replay.graph.step_s(replay.real_s).max(axis=0) == pytest.approx(made.step_s, rel=0.01)


def test_nothing_is_blamed_where_all_are_alike(tmp_path: Path) -> None:
    answer = diagnose_pipeline(read_operations(Pipeline().save(tmp_path)))
    assert answer.verdict.startswith("No rank or stage is slow")
    assert "No policy here helps" in answer.next_step


def slow_replica(replica: int, stage: int, step: int, kind: str, batch: int) -> float:
    return even(replica, stage, step, kind, batch) * (1.5 if replica == 1 else 1.0)


def slow_at_times(replica: int, stage: int, step: int, kind: str, batch: int) -> float:
    return even(replica, stage, step, kind, batch) * (1.8 if replica == 1 and step % 2 else 1.0)


def loss_layer(replica: int, stage: int, step: int, kind: str, batch: int) -> float:
    return even(replica, stage, step, kind, batch) + (0.08 if kind == FORWARD and stage == 2 else 0.0)


def garbage(replica: int, stage: int, step: int, kind: str, batch: int) -> float:
    held_up = kind == FORWARD and np.random.default_rng((replica, stage, step, batch)).random() < 0.05
    return even(replica, stage, step, kind, batch) + (0.5 if held_up else 0.0)


def long_samples_and_stage(replica: int, stage: int, step: int, kind: str, batch: int) -> float:
    return long_samples(replica, stage, step, kind, batch) * (1.3 if stage == 2 else 1.0)


@pytest.mark.parametrize(
    ("took", "verdict", "helps"),
    [
        (slow_rank, "Rank 3 (replica 1, stage 1) is slow in backward-compute, which costs", True),
        (slow_backward, "Rank 0 (replica 0, stage 0) is slow in backward-compute, which costs", True),
        (long_stage, "Stage 2 has too much to do in backward-compute, on all replicas alike, which costs", False),
        (slow_replica, "Replica 1 is slow in backward-compute, which costs", True),
        (slow_at_times, "Replica 1 is slow in backward-compute, which costs", None),
        (loss_layer, "Stage 2 has too much to do in forward-compute, on all replicas alike", False),
        (garbage, "Ranks stand still now and then in forward-compute, which costs", None),
        (long_samples, "Micro-batches are not alike in backward-compute, on whichever replica they fall", None),
        (
            long_samples_and_stage,
            "Micro-batches are not alike in backward-compute, on whichever replica they fall",
            None,
        ),
    ],
)
def test_the_narrowest_cause_is_named(tmp_path: Path, took: Duration, verdict: str, helps: bool | None) -> None:
    answer = diagnose_pipeline(read_operations(Pipeline(took, batches=8).save(tmp_path)))
    assert answer.verdict.startswith(verdict)
    if helps is not None:
        assert ("No policy here helps" not in answer.next_step) == helps


@pytest.mark.parametrize(("replicas", "stages", "batches"), [(2, 2, 4), (3, 1, 6), (4, 3, 9), (2, 6, 12)])
def test_a_slow_rank_is_found_in_any_number_of_stages_and_replicas(
    tmp_path: Path, replicas: int, stages: int, batches: int
) -> None:
    where = replicas - 1, stages // 2

    def slow(replica: int, stage: int, step: int, kind: str, batch: int) -> float:
        return even(replica, stage, step, kind, batch) * (2.0 if (replica, stage) == where else 1.0)

    made = Pipeline(slow, replicas, stages, batches)
    answer = diagnose_pipeline(read_operations(made.save(tmp_path)))
    rank = where[1] * replicas + where[0]
    assert answer.verdict.startswith(f"Rank {rank} (replica {where[0]}, stage {where[1]}) is slow in ")


def test_clocks_that_are_an_hour_apart_are_set_by_the_exchanges(tmp_path: Path) -> None:
    made = Pipeline(slow_rank)
    rng = np.random.default_rng(0)
    apart_s = {(replica, stage): rng.uniform(-3600, 3600) for replica in range(2) for stage in range(3)}
    for row in made.rows:
        row["start_ts"] += apart_s[row["dp_rank"], row["stage"]] * (1 + 1e-5 * row["step"])
    answer = diagnose_pipeline(read_operations(made.save(tmp_path)))
    assert answer.verdict.startswith("Rank 3 (replica 1, stage 1) is slow in backward-compute")
    assert any("the clocks of the ranks are up to" in note for note in answer.notes)


@pytest.mark.parametrize("missing", [["mb_id", "mc", "gmc"], ["seq_id"], ["rank"], ["rank", "seq_id", "mb_id", "mc"]])
@pytest.mark.parametrize(
    ("took", "verdict"), [(slow_rank, "is slow in backward-compute"), (long_samples, "Micro-batches are not alike")]
)
def test_columns_that_follow_from_others_may_be_missing(
    tmp_path: Path, missing: list[str], took: Duration, verdict: str
) -> None:
    made = Pipeline(took, batches=8)
    for row in made.rows:
        for name in missing:
            row.pop(name)
    answer = diagnose_pipeline(read_operations(made.save(tmp_path)))
    assert verdict in answer.verdict
    assert "rank -1" not in answer.verdict.lower()


def test_of_ranks_that_compute_one_stage_together_one_is_read(tmp_path: Path) -> None:
    made = Pipeline(slow_rank)
    made.rows = [{**row, "rank": 2 * row["rank"] + part} for row in made.rows for part in (0, 1)]
    answer = diagnose_pipeline(read_operations(made.save(tmp_path)))
    assert answer.verdict.startswith("Rank 6 (replica 1, stage 1) is slow in backward-compute")
    assert answer.notes == ["of ranks that compute one stage together the first was read"]


def test_ideal_replicas_and_all_but_the_slowest_are_worked_out_by_hand(tmp_path: Path) -> None:
    """One stage, so that a step is the sum of what it computes."""

    def slow(replica: int, stage: int, step: int, kind: str, batch: int) -> float:
        return 0.3 if replica == 2 else 0.1

    replay = PipelineReplay(read_operations(Pipeline(slow, replicas=4, stages=1, batches=5).save(tmp_path)))
    rest_s = 0.01 + 0.001 + 0.03 + 0.001 + 0.01
    assert replay.now_s == pytest.approx(10 * 0.3 + rest_s)
    assert replay.best_s == pytest.approx(10 * 0.15 + rest_s)
    assert replay.only(Where(replica=2)) == pytest.approx(replay.slowdown)
    assert replay.only(Where(replica=0)) == pytest.approx(1.0)
    assert replay.without(Where(replica=2)) == pytest.approx(replay.best_s)


def test_a_job_that_its_operations_do_not_explain_gets_no_verdict(tmp_path: Path) -> None:
    made = Pipeline()
    for row in made.rows:
        row["start_ts"] += 0.3 * row["stage"] * (row["optype"] == "optimizer") + (row["optype"] == "optimizer")
    answer = diagnose_pipeline(read_operations(made.save(tmp_path)))
    assert not answer.enough
    assert answer.verdict.startswith("Not enough evidence: played again")


def test_one_replica_has_no_policy_to_choose(tmp_path: Path) -> None:
    answer = diagnose_pipeline(read_operations(Pipeline(long_stage, replicas=1).save(tmp_path)))
    assert answer.verdict.startswith("Stage 2 takes longest in backward-compute, which costs")
    assert "There is one replica" in answer.next_step
    assert answer.prospects == []


def test_messages_that_were_recorded_and_never_went_are_left_out(tmp_path: Path) -> None:
    """Before the first backward pass of a stage there is nothing to send back."""
    made = Pipeline(slow_rank)
    for row in [row for row in made.rows if row["optype"] == BACKWARD and row["mb_id"] == 0 and row["stage"]]:
        early_s = row["start_ts"] - 0.01
        for other in made.rows:
            same = [other[key] == row[key] for key in ("dp_rank", "stage", "step")]
            if all(same) and other["optype"] == "backward-send":
                other["seq_id"] += 1
        made.rows.append(
            {**row, "optype": "backward-send", "seq_id": 0, "mb_id": -1, "start_ts": early_s, "duration": 1e-4}
        )
    replay = PipelineReplay(read_operations(made.save(tmp_path)))
    assert replay.graph.step_s(replay.real_s).max(axis=0) == pytest.approx(made.step_s, rel=0.01)
