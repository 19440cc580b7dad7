"""The figure of who arrives when."""

from polyrhythm.report.figures import arrivals_chart, latest, verdict
from polyrhythm.report.palette import looks
from polyrhythm.telemetry import RunResult
from polyrhythm.telemetry.stragglers import Lateness


def result(**arrivals: Lateness) -> RunResult:
    workers = {int(name[1:]): arrival for name, arrival in arrivals.items()}
    return RunResult(scenario="s", policy="bsp", seed=0, workers=4, batch_size=1, arrivals=workers)


def test_a_row_for_each_worker_and_a_verdict() -> None:
    late = Lateness(10, 2.0, 0.5, 0.0, 2.5, True, 0.4, 2, "transient")
    run = result(w0=Lateness(10, 1.0, 0.25, 1.25), w1=late)
    chart = arrivals_chart({"bsp": [run]}, looks(["bsp"]))
    assert chart is not None
    assert chart.rows[0][:5] == ["bsp", "0", "1 s", "0.25 s", "1.25 s"]
    assert chart.rows[1][5:] == ["2x, 40% of the time", "transient"]
    assert verdict(run) == "has worker 1 (transient)"
    assert [list(bar.x) for bar in chart.figure.data] == [[1.0, 2.0], [0.25, 0.5], [1.25, 0.0]]


def test_nothing_was_measured() -> None:
    assert arrivals_chart({"bsp": [result()]}, looks(["bsp"])) is None
    assert verdict(result()) == "has no straggler"


def test_of_very_many_the_latest_are_shown() -> None:
    run = result(**{f"w{k}": Lateness(1, float(k % 50), 0.0, 0.0) for k in range(100)})
    shown = [worker for worker, _ in latest(run)]
    assert len(shown) == 32
    assert shown == sorted(shown)
    assert min(worker % 50 for worker in shown) == 34
