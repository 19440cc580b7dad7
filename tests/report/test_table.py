import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.report.table import cells, columns, headings, rows
from polyrhythm.telemetry.result import RunResult
from tests.report.results import result


def text(results: list[RunResult], has_target: bool = True) -> dict[str, dict[str, str]]:
    """Cells by policy and heading."""
    ranking = rows(results)
    heads = headings(ranking, has_target)
    return {row[0]: dict(zip(heads, row, strict=True)) for row in cells(ranking, has_target)}


def test_means_deviations_and_the_speedup_are_over_seeds() -> None:
    bsp = [result("bsp", seed, time_to_target_s=time_s) for seed, time_s in enumerate((10.0, 30.0))]
    asp = [result("asp", seed, time_to_target_s=8.0) for seed in range(2)]
    first, second = rows([*bsp, *asp])
    assert (first.policy, first.time_to_target_s, first.speedup) == ("asp", 8.0, 2.5)
    assert (second.policy, second.time_to_target_s, second.speedup) == ("bsp", 20.0, 1.0)
    assert second.final_accuracy is not None
    assert second.final_accuracy.mean == pytest.approx(0.955)
    assert second.final_accuracy.deviation == pytest.approx(0.01 / 2**0.5)


def test_a_policy_that_some_seeds_bring_to_the_target_stands_after_those_that_always_get_there() -> None:
    sometimes = [result("ssp:3", 0, time_to_target_s=1.0), result("ssp:3", 1, time_to_target_s=None)]
    never = [result("asp", seed, time_to_target_s=None) for seed in range(2)]
    always = [result("bsp", seed) for seed in range(2)]
    table = text([*never, *sometimes, *always])
    assert list(table) == ["bsp", "ssp:3", "asp"]
    assert table["ssp:3"]["time to target (s)"] == "1 (1 of 2)"
    assert table["ssp:3"]["speed-up over bsp"] == "-"
    assert table["asp"]["time to target (s)"] == "never"


def test_without_bsp_there_is_no_speedup() -> None:
    assert text([result("asp")])["asp"]["speed-up over bsp"] == "-"


def test_without_a_target_the_duration_ranks() -> None:
    slow = result("bsp", duration_s=50.0, target_accuracy=None, time_to_target_s=None)
    fast = result("asp", duration_s=20.0, target_accuracy=None, time_to_target_s=None)
    table = text([slow, fast], has_target=False)
    assert list(table) == ["asp", "bsp"]
    assert table["asp"]["duration (s)"] == "20"
    assert table["asp"]["speed-up over bsp"] == "2.50x"


def test_a_failed_run_is_counted_and_kept_out_of_the_means() -> None:
    lost = result("asp", 1, status="diverged", message="loss is not finite", final_accuracy=0.1)
    table = text([result("asp", 0), lost])
    assert table["asp (1 of 2 failed)"]["final accuracy"] == "95.0 %"
    assert table["asp (1 of 2 failed)"]["speed-up over bsp"] == "-"


def test_a_policy_without_any_result_comes_last() -> None:
    table = text([result("asp", status="failed", message="no"), result("bsp", time_to_target_s=None)])
    assert list(table) == ["bsp", "asp (1 of 1 failed)"]
    assert set(list(table["asp (1 of 1 failed)"].values())[1:]) == {"-"}


def test_what_was_not_measured_is_a_dash_and_not_zero() -> None:
    table = text([result(final_accuracy=None, staleness_mean=None, staleness_max=None)])
    assert (table["bsp"]["final accuracy"], table["bsp"]["staleness mean / max"]) == ("-", "-")


def test_the_other_columns() -> None:
    row = text([result(gradients_dropped=7)])["bsp"]
    assert row["idle"] == "25 %"
    assert row["samples/s"] == "10"
    assert row["staleness mean / max"] == "1.5 / 3"
    assert row["bytes"] == "1.0 kB"
    assert row["dropped"] == "7"
    assert all(column.meaning for column in columns(rows([result(lssr=0.5)]), has_target=True))


def test_the_share_of_local_steps_is_shown_where_there_are_any() -> None:
    assert "LSSR" not in text([result(), result("asp", lssr=0.0)])["bsp"]
    table = text([result(), result("selsync:0.3", lssr=0.8)])
    assert (table["bsp"]["LSSR"], table["selsync:0.3"]["LSSR"]) == ("-", "0.8")


times = st.none() | st.floats(0.001, 1e6)


@given(st.lists(st.tuples(st.sampled_from(["bsp", "asp", "ssp:3"]), times), min_size=1, max_size=12))
def test_every_policy_has_one_row_and_times_ascend(runs: list[tuple[str, float | None]]) -> None:
    ranking = rows(result(policy, seed, time_to_target_s=time) for seed, (policy, time) in enumerate(runs))
    assert sorted(row.policy for row in ranking) == sorted({policy for policy, _ in runs})
    always = [row.time_to_target_s for row in ranking if row.reached == row.runs]
    assert always == sorted(always)  # type: ignore[type-var]
