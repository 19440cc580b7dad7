from pathlib import Path

import pytest

from polyrhythm.cli.outputs import as_page
from polyrhythm.core import Cluster, Entry, Header, Joined, Left, Proceed, Report, Sync, Trace
from polyrhythm.errors import TraceError
from polyrhythm.policies import parse_policy
from polyrhythm.report.timeline import KINDS, Span, Timeline, common_window, load_timeline
from polyrhythm.sim import Compute, Device, Network, Scenario, TimingWorkload, simulate
from tests.report.results import result


def spans(timeline: Timeline, worker: int) -> list[Span]:
    return [span for span in timeline.spans if span.worker == worker]


def test_a_fast_worker_waits_at_the_barrier(bsp_trace: Trace) -> None:
    timeline = Timeline.of(bsp_trace)
    assert spans(timeline, 0) == [
        Span(0, "compute", 0.0, 1.0),
        Span(0, "wait", 1.0, 3.0),
        Span(0, "compute", 3.0, 4.0),
        Span(0, "wait", 4.0, 6.0),
    ]


def test_a_step_reads_computes_and_pushes(bsp_trace: Trace) -> None:
    assert spans(Timeline.of(bsp_trace), 2)[:3] == [
        Span(2, "transfer", 0.0, 0.5),
        Span(2, "compute", 0.5, 2.5),
        Span(2, "transfer", 2.5, 3.0),
    ]


def test_an_average_comes_before_the_step_and_may_wait_for_others() -> None:
    entries = (
        Entry(Joined((0,), 0.0), (Proceed((0,), "replicas"),)),
        Entry(Report(0, 1, 6.0, step_s=2.0, transfer_s=3.0), ()),
    )
    timeline = Timeline.of(Trace(Header("local:1", Cluster(1)), entries))
    assert timeline.spans == (Span(0, "wait", 0.0, 1.0), Span(0, "transfer", 1.0, 4.0), Span(0, "compute", 4.0, 6.0))


def test_on_real_workers_in_lockstep_the_wait_for_others_comes_before_the_report() -> None:
    entries = (
        Entry(Joined((0,), 0.0), (Proceed((0,)),)),
        Entry(Report(0, 1, 6.0, step_s=2.0, wait_s=4.0), (Sync((0,)),)),
    )
    timeline = Timeline.of(Trace(Header("bsp", Cluster(1)), entries))
    assert timeline.spans == (Span(0, "compute", 0.0, 2.0), Span(0, "wait", 2.0, 6.0))


def test_abandoned_work_is_lost_and_a_dead_worker_has_no_more_spans(cancelling_trace: Trace) -> None:
    timeline = Timeline.of(cancelling_trace)
    assert spans(timeline, 1) == [Span(1, "lost", 0.0, 1.0), Span(1, "lost", 1.0, 1.5)]


def test_a_worker_that_finishes_after_a_last_average_lost_nothing() -> None:
    entries = (
        Entry(Joined((0,), 0.0), (Sync((0,), "parameters"), Proceed((0,), "replicas"))),
        Entry(Left(0, 2.0, 0, "finished"), ()),
    )
    assert Timeline.of(Trace(Header("local:1", Cluster(1)), entries)).spans == (Span(0, "transfer", 0.0, 2.0),)


def test_updates_and_staleness_are_kept(cancelling_trace: Trace) -> None:
    timeline = Timeline.of(cancelling_trace)
    assert [update.time_s for update in timeline.updates] == [1.0, 2.0]
    assert [arrival.staleness for arrival in timeline.arrivals] == [0, 4]


def test_a_window_cuts_what_crosses_its_end(bsp_trace: Trace) -> None:
    window = Timeline.of(bsp_trace).until(2.5, workers=1)
    assert window.spans == (Span(0, "compute", 0.0, 1.0), Span(0, "wait", 1.0, 2.5))
    assert (window.end_s, window.complete, window.updates) == (2.5, False, ())


def test_a_window_over_everything_is_the_whole(bsp_trace: Trace) -> None:
    timeline = Timeline.of(bsp_trace)
    assert timeline.until(timeline.end_s) == timeline


def test_the_common_window_ends_where_the_busiest_is_full(bsp_trace: Trace, cancelling_trace: Trace) -> None:
    timelines = [Timeline.of(bsp_trace), Timeline.of(cancelling_trace)]
    assert common_window(timelines, spans=100) == 6.0
    end_s = common_window(timelines, spans=4)
    assert max(len(timeline.until(end_s).spans) for timeline in timelines) <= 4 + 3


def test_a_long_file_is_read_in_part(bsp_trace: Trace, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    bsp_trace.save(path)
    assert load_timeline(path) == load_timeline(path, entries=1000) == Timeline.of(bsp_trace)
    part = load_timeline(path, entries=4)
    assert (part.end_s, part.complete) == (3.0, False)
    assert common_window([part], spans=100) == 3.0


@pytest.mark.parametrize("entries", [None, 10])
def test_a_missing_file_is_one_line(tmp_path: Path, entries: int | None) -> None:
    with pytest.raises(TraceError, match=r"cannot read trace '.*gone'"):
        load_timeline(tmp_path / "gone", entries)


def test_a_report_out_of_nowhere_is_one_line() -> None:
    trace = Trace(Header("bsp", Cluster(1)), (Entry(Report(0, 1, 1.0), ()),))
    with pytest.raises(TraceError, match=r"worker 0 reports at .* s but nobody let it proceed"):
        Timeline.of(trace)


def test_shares_of_a_real_run_are_those_of_its_result(tmp_path: Path) -> None:
    scenario = Scenario(
        devices=[Device(count=2, compute_s=0.1), Device(compute_s=0.3)],
        compute=Compute(distribution="normal", deviation=0.2),
        network=Network(message_bytes=1e6, server_gbps=1.0),
        workload=TimingWorkload(batch_size=16, samples=640),
    )
    for spec in ("bsp", "asp", "ssp:2", "dssp:1,3", "k-async:2", "k-group:2", "local:4", "post-local:4,at=0.5"):
        result = simulate(scenario, parse_policy(spec), trace=tmp_path / "trace")
        timeline = load_timeline(tmp_path / "trace")
        lengths = {kind: sum(s.end_s - s.start_s for s in timeline.spans if s.kind == kind) for kind in KINDS}
        everything = sum(lengths.values())
        assert lengths["wait"] / everything == pytest.approx(result.idle_fraction), spec
        assert lengths["transfer"] / everything == pytest.approx(result.transfer_fraction), spec
        assert lengths["lost"] == 0


def test_a_page_names_a_timeline_as_its_result(bsp_trace: Trace, tmp_path: Path) -> None:
    """Of a policy that chooses others, the first trace of real workers is of what it begins with."""
    path = tmp_path / "phase-1.jsonl"
    bsp_trace.save(path)
    assert "auto" in as_page("compare", "", [result("auto", trace_path=str(path))])
