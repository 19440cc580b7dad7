import math
from collections.abc import Sequence

import numpy as np
import pytest

from polyrhythm.core import Trace
from polyrhythm.report.figures import RunsByPolicy, band, bytes_chart, curve_charts, staleness_chart
from polyrhythm.report.overview_figure import STRETCHES, busy_shares, overview_chart
from polyrhythm.report.palette import COLOURS, looks
from polyrhythm.report.timeline import Span, Timeline
from polyrhythm.report.timeline_figure import kind_shares, timeline_chart
from polyrhythm.telemetry.result import EvalPoint, RunResult
from tests.report.results import result

LOOKS = looks(["bsp", "asp"])


def by_policy(results: Sequence[RunResult]) -> RunsByPolicy:
    return {policy: [r for r in results if r.policy == policy] for policy in dict.fromkeys(r.policy for r in results)}


@pytest.fixture
def runs() -> RunsByPolicy:
    return by_policy([result(policy, seed) for policy in ("bsp", "asp") for seed in range(2)])


def test_accuracy_and_loss_against_time_and_samples(runs: RunsByPolicy) -> None:
    charts = curve_charts(runs, LOOKS, target=0.9)
    assert [chart.key for chart in charts] == ["accuracy-time", "accuracy-samples", "loss-time", "loss-samples"]
    for chart in charts:
        named = [trace.name for trace in chart.figure.data if trace.name]
        assert named == ["bsp", "asp"]
        assert "bsp ends at" in chart.description
        assert [row[0] for row in chart.rows] == ["bsp", "asp"]
    assert charts[0].figure.layout.shapes[0].y0 == 0.9
    assert not charts[2].figure.layout.shapes


def test_seeds_that_differ_have_a_band_in_the_colour_of_the_policy(runs: RunsByPolicy) -> None:
    chart = curve_charts(runs, LOOKS, target=None)[0]
    bands = [trace for trace in chart.figure.data if trace.fill == "toself"]
    assert [trace.legendgroup for trace in bands] == ["bsp", "asp"]
    assert bands[0].fillcolor == "rgba(0,114,178,0.18)"
    lines = [trace.line.color for trace in chart.figure.data if trace.name]
    assert lines == list(COLOURS[:2])


def test_without_a_model_there_are_no_curves(runs: RunsByPolicy) -> None:
    assert curve_charts(by_policy([result(curve=[])]), LOOKS, None) == []


def test_staleness_shares_add_up(runs: RunsByPolicy) -> None:
    counts = {0: 30, 7: 50, 99: 20}
    chart = staleness_chart(by_policy([result("asp", staleness_counts=counts), result("bsp")]), LOOKS)
    assert chart is not None
    asp, bsp = chart.figure.data
    assert list(asp.x[:2]) == ["0-4", "5-9"]
    assert (sum(asp.y), asp.y[0], asp.y[1], asp.y[-1]) == pytest.approx((1, 0.3, 0.5, 0.2))
    assert len(bsp.y) == len(asp.y) == 20
    assert all(len(row) == len(chart.headings) for row in chart.rows)


def test_without_gradients_or_bytes_the_figures_are_left_out() -> None:
    runs = by_policy([result(staleness_counts={}, bytes_pushed=0, bytes_pulled=0, bytes_total=0)])
    assert staleness_chart(runs, LOOKS) is None
    assert bytes_chart(runs, LOOKS) is None


def test_bytes_are_means_over_seeds() -> None:
    runs = by_policy([result(bytes_pushed=100, bytes_pulled=0), result(seed=1, bytes_pushed=300, bytes_pulled=50)])
    chart = bytes_chart(runs, LOOKS)
    assert chart is not None
    assert [list(trace.x) for trace in chart.figure.data] == [[200.0], [25.0]]
    assert chart.rows == [["bsp", "200 B", "25 B"]]


def test_the_timeline_has_a_row_of_axes_for_each_policy(bsp_trace: Trace, cancelling_trace: Trace) -> None:
    timelines = [Timeline.of(bsp_trace), Timeline.of(cancelling_trace)]
    chart = timeline_chart(timelines, looks(timeline.policy for timeline in timelines))
    assert chart.description.startswith("The whole run of the first seed.")
    assert [annotation.text for annotation in chart.figure.layout.annotations] == ["bsp", "k-sync:1"]
    assert list(chart.figure.layout.yaxis.ticktext) == ["worker 0", "worker 1", "worker 2"]
    compute = next(trace for trace in chart.figure.data if "computes" in trace.hovertemplate)
    assert len(compute.x) == 3 * 6
    assert list(compute.text[:3]) == ["1 s", "1 s", ""]


def test_a_long_run_is_cut_and_the_page_says_so(bsp_trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("polyrhythm.report.timeline_figure.SPANS", 6)
    monkeypatch.setattr("polyrhythm.report.timeline_figure.WORKERS", 2)
    chart = timeline_chart([Timeline.of(bsp_trace)], LOOKS)
    assert chart.description.startswith("The first 4 s of 2 of 3 workers of the first seed")
    assert "worker 2" not in chart.figure.layout.yaxis.ticktext


def test_shares_of_the_time(bsp_trace: Trace) -> None:
    shares = kind_shares(Timeline.of(bsp_trace))
    assert shares == pytest.approx({"compute": 8 / 18, "transfer": 2 / 18, "wait": 8 / 18, "lost": 0})


def test_a_run_that_is_cut_has_an_overview_of_the_whole(bsp_trace: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    timelines = [Timeline.of(bsp_trace)]
    assert overview_chart(timelines, LOOKS) is None
    monkeypatch.setattr("polyrhythm.report.timeline_figure.SPANS", 6)
    chart = overview_chart(timelines, LOOKS)
    assert chart is not None
    assert chart.rows == [["bsp", "33 %", "100 %"]]
    assert chart.description.startswith("The first seed, 6 s in stretches of 0.025 s.")
    (heatmap,) = chart.figure.data
    assert heatmap.z.shape == (3, STRETCHES)
    assert heatmap.z[0, [0, STRETCHES // 4]].tolist() == [1, 0]


def test_a_worker_that_is_not_there_is_neither_busy_nor_idle() -> None:
    spans = (Span(0, "compute", 0.0, 2.0), Span(0, "wait", 2.0, 3.0), Span(1, "lost", 2.0, 4.0))
    busy = busy_shares(Timeline("asp", spans, (), (), 4.0), np.array([0.0, 1.0, 3.0, 4.0]))
    assert np.array_equal(busy, [[1, 0.5, np.nan], [np.nan, 1, 1]], equal_nan=True)


def run(*points: tuple[float, float]) -> RunResult:
    return result(curve=[EvalPoint(time_s, 0, 0, accuracy, 0.0) for time_s, accuracy in points])


def accuracy_band(*runs: RunResult):  # type: ignore[no-untyped-def]
    return band(runs, lambda point: point.time_s, lambda point: point.accuracy)


def test_one_seed_keeps_its_points_and_has_no_band() -> None:
    b = accuracy_band(run((0.0, 0.1), (3.0, 0.7)))
    assert b.x.tolist() == [0.0, 3.0]
    assert b.mean.tolist() == [0.1, 0.7]
    assert not b.deviation.any()


def test_seeds_are_interpolated_where_all_have_data() -> None:
    b = accuracy_band(run((0.0, 0.0), (10.0, 1.0)), run((0.0, 0.0), (5.0, 1.0)))
    assert (b.x[0], b.x[-1]) == (0.0, 5.0)
    assert b.mean[-1] == pytest.approx(0.75)
    assert b.deviation[-1] == pytest.approx(np.std([0.5, 1.0], ddof=1))


def test_what_is_not_finite_is_left_out() -> None:
    assert accuracy_band(run((0.0, 0.1), (1.0, math.nan))).x.tolist() == [0.0]
    assert accuracy_band(run((0.0, math.inf))) is None
    assert accuracy_band(run((0.0, 0.1)), run((5.0, 0.1))) is None
