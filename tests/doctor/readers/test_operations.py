from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet as parquet
import pytest

from polyrhythm.doctor.readers import operations
from polyrhythm.doctor.readers.operations import Operation, read_operations
from polyrhythm.errors import TraceError
from tests.doctor.pipelines import Pipeline


def changed(path: Path, rows: list[dict[str, object]]) -> Path:
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


def test_rows_in_any_order_are_the_same_trace(tmp_path: Path) -> None:
    made = Pipeline(steps=2)
    one, other = (read_operations(made.save(tmp_path, f"{seed}", seed)) for seed in (1, 2))
    assert one.names == other.names
    assert np.array_equal(one.start_s, other.start_s)
    assert (one.replicas, one.stages, one.steps) == (2, 3, (0, 1))
    assert one.ranks.tolist() == [[0, 2, 4], [1, 3, 5]]
    assert one.step_s == pytest.approx(made.step_s)
    assert Operation("forward-compute", 5, 2) in one.names


def test_a_step_that_is_not_whole_is_left_out(tmp_path: Path) -> None:
    made = Pipeline(steps=3)
    path = made.save(tmp_path)
    cut = [row for row in made.rows if not (row["step"] == 2 and row["optype"] == "optimizer" and row["dp_rank"] == 1)]
    trace = read_operations(changed(path, cut))
    assert (trace.steps, trace.notes) == ((0, 1), ("1 steps of which some operations are missing were left out",))


def test_a_replica_that_is_not_there_is_missed(tmp_path: Path) -> None:
    made = Pipeline()
    path = changed(made.save(tmp_path), [row for row in made.rows if row["dp_rank"] == 0])
    with pytest.raises(TraceError, match="no operations of replica 1, but the job has 2 of them"):
        read_operations(path)


def test_a_stage_that_is_not_there_is_missed(tmp_path: Path) -> None:
    made = Pipeline()
    path = changed(made.save(tmp_path), [row for row in made.rows if row["stage"] != 1])
    with pytest.raises(TraceError, match="no operations of stage 1, but the job has 3 of them"):
        read_operations(path)


def test_rows_of_two_jobs_are_not_one(tmp_path: Path) -> None:
    made = Pipeline()
    with pytest.raises(TraceError, match=r"twice in step 0; is it of two jobs\?"):
        read_operations(changed(made.save(tmp_path), made.rows + made.rows[:50]))


def test_columns_must_be_there(tmp_path: Path) -> None:
    rows = [{key: value for key, value in row.items() if key not in ("stage", "step")} for row in Pipeline().rows]
    with pytest.raises(TraceError, match="has no column stage, step"):
        read_operations(changed(tmp_path / "trace-a.parquet", rows))


def test_an_empty_trace_says_so(tmp_path: Path) -> None:
    path = Pipeline().save(tmp_path)
    parquet.write_table(parquet.read_table(path).slice(0, 0), path)
    with pytest.raises(TraceError, match="has no rows"):
        read_operations(path)


@pytest.mark.parametrize("kept", [0, 4, 3000])
def test_a_file_that_is_cut_off_is_one_line(tmp_path: Path, kept: int) -> None:
    path = Pipeline().save(tmp_path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(TraceError, match=r"cannot read .*; was it cut off\?") as caught:
        read_operations(path)
    assert "\n" not in str(caught.value)


def test_more_rows_than_fit_are_refused_before_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "MOST_ROWS", 100)
    with pytest.raises(TraceError, match=r"rows, more than 100; give a part of its steps"):
        read_operations(Pipeline().save(tmp_path))


def test_times_must_be_finite(tmp_path: Path) -> None:
    made = Pipeline()
    made.rows[3]["duration"] = float("nan")
    with pytest.raises(TraceError, match="times that are not finite or negative"):
        read_operations(made.save(tmp_path))
