from pathlib import Path

import pytest

from polyrhythm.errors import DataError
from polyrhythm.search.log import Pool, read_log

RUNS = Path(__file__).parent / "runs.csv"
HEAD = "setup,bsp_percent,run,converged_accuracy,train_time_s\n"


def test_columns_come_in_any_order_and_notes_exclude_rows() -> None:
    log = read_log(RUNS)
    assert log.excluded == 2
    assert log.setups["small"][50.0] == Pool((0.93, 0.91), (60.0, 60.0))
    assert log.setups["stragglers"] == {5.0: Pool((0.9,), (50.0,))}


def test_a_diverged_run_has_accuracy_zero_and_costs_its_time() -> None:
    assert read_log(RUNS).setups["small"][25.0] == Pool((0.92, 0.0), (40.0, 44.0))


def test_nothing_is_excluded_on_request_and_another_rule_may_be_given() -> None:
    assert read_log(RUNS, exclude="").excluded == 0
    assert read_log(RUNS, exclude="slow disk").excluded == 1


def test_a_byte_order_mark_and_blanks_are_no_matter(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("\ufeff" + HEAD.replace(",", ", ") + "a, 100, 1, 0.9, 5\n", encoding="utf-8")
    assert read_log(path).setups == {"a": {100.0: Pool((0.9,), (5.0,))}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no column 'setup'; its first line must name setup, bsp_percent"),
        (
            "setup,bsp_share,run,converged_accuracy,train_time_s\n",
            "has no column 'bsp_percent'.*did you mean bsp_share",
        ),
        (HEAD, "has no runs"),
        (HEAD + "a,100,1,91.2,5\n", "line 2: converged_accuracy must be a number from 0 to 1 but is '91.2'"),
        (HEAD + "a,100,1,0.9,5\na,half,1,0.9,5\n", "line 3: bsp_percent must be a number from 0 to 100 but is 'half'"),
        (HEAD + "a,100,1,0.9,\n", "line 2: train_time_s must be a number of at least 0 but is ''"),
        (HEAD + "a,100,1\n", "line 2: train_time_s must be a number"),
        (HEAD + ",100,1,0.9,5\n", "line 2: setup is empty"),
        (HEAD + "a,100,1,0.9,5\na,50,1,0.9,5\na,100,1,0.8,6\n", "line 4: run 1 is in line 2 already"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DataError, match=message):
        read_log(path)


def test_a_file_that_is_no_table_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(b"\xff\xfe\x00" * 9)
    with pytest.raises(DataError, match="is no CSV file in UTF-8"):
        read_log(path)
    with pytest.raises(DataError, match="cannot read"):
        read_log(tmp_path / "none.csv")
    with pytest.raises(DataError, match="no regular expression"):
        read_log(path, exclude="(")
