import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.core import (
    Alarm,
    Cancel,
    Cluster,
    Entry,
    Exchange,
    Header,
    Joined,
    Left,
    LeftReason,
    LossMeasured,
    MeasureLoss,
    Outer,
    Proceed,
    Report,
    Settings,
    Stop,
    Stopped,
    Sync,
    Trace,
    TraceWriter,
    Wake,
    replay,
)
from polyrhythm.core.trace import DECISIONS, EVENTS
from polyrhythm.core.types import Synced
from polyrhythm.errors import TraceError, UsageError
from polyrhythm.policies import ASP, BSP
from polyrhythm.testing import ClusterScript, ScriptPlayer

numbers = st.integers(0, 10**9)
times = st.floats(0, 1e12)
workers = st.lists(numbers, max_size=4).map(tuple)
changes = st.builds(Settings, st.none() | times, st.none() | times, st.none() | numbers)
events = st.one_of(
    st.builds(Joined, workers, times, numbers),
    st.builds(
        Report, numbers, numbers, times, numbers, times, times, numbers, st.none() | times, st.none() | times, times
    ),
    st.builds(Left, numbers, times, numbers, st.sampled_from(get_args(LeftReason))),
    st.builds(Stopped, times, numbers),
    st.builds(Alarm, times),
)
decisions = st.one_of(
    st.builds(
        Sync,
        workers,
        st.sampled_from(get_args(Synced)),
        st.none() | st.lists(times, max_size=3).map(tuple),
        st.none() | workers,
        st.none() | st.builds(Outer, times, times, st.booleans()),
        st.none() | st.tuples(numbers, numbers),
        numbers,
    ),
    st.builds(Proceed, workers, st.sampled_from(get_args(Exchange)), st.none() | changes),
    st.builds(Cancel, workers),
    st.builds(Stop, workers),
    st.builds(Wake, times),
    st.builds(MeasureLoss, times),
)
entries = st.builds(Entry, events, st.lists(decisions, max_size=3).map(tuple))
about = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=5), max_size=3)
headers = st.builds(Header, st.text(max_size=9), st.builds(Cluster, st.integers(1, 99)), about)
traces = st.builds(Trace, headers, st.lists(entries, max_size=5).map(tuple))

quick = settings(max_examples=200, deadline=None, derandomize=True, database=None)


def written(trace: Trace) -> str:
    stream = io.StringIO()
    writer = TraceWriter(stream, trace.header)
    for entry in trace.entries:
        writer.write(*entry)
    return stream.getvalue()


def run() -> Trace:
    return ScriptPlayer(BSP(), ClusterScript(workers=2, total_samples=6)).play().trace


@quick
@given(trace=traces)
def test_round_trip(trace: Trace) -> None:
    text = written(trace)
    again = Trace.parse(io.StringIO(text))
    assert again == trace
    assert written(again) == text
    assert [type(time) for time in times_of(again)] == [type(time) for time in times_of(trace)]


def times_of(trace: Trace) -> list[float]:
    return [entry.event.time_s for entry in trace.entries]


def test_every_kind_has_a_tag() -> None:
    assert set(EVENTS.values()) == {Joined, Report, Left, Stopped, LossMeasured, Alarm}
    assert set(DECISIONS.values()) == {Sync, Proceed, Cancel, Stop, Wake, MeasureLoss}


def test_equal_runs_give_equal_bytes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        run().save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "other").read_bytes()
    assert Trace.load(tmp_path / "one") == run()


def test_format_is_fixed() -> None:
    """Traces outlive releases: a change of this text needs a new FORMAT."""
    trace = Trace(
        Header("ssp:3", Cluster(2, batch_size=8), {"seed": 1}),
        (
            Entry(Joined((0, 1), 0.0), (Proceed((0, 1), settings=Settings(lr_scale=0.5)),)),
            Entry(Report(1, 1, 0.25, samples=8, step_s=0.25, loss=0.5), (Sync((1,)), Wake(0.5))),
            Entry(Left(0, 0.5, 0), (Cancel((1,)), Proceed((1,), "replicas"))),
            Entry(Alarm(0.5), (Sync((1,), "deltas", (2.0,)),)),
        ),
    )
    assert written(trace).splitlines() == [
        '{"format":1,"policy":"ssp:3","cluster":{"workers":2,"batch_size":8},"about":{"seed":1}}',
        '{"event":{"kind":"joined","workers":[0,1],"time_s":0.0},'
        '"decisions":[{"kind":"proceed","workers":[0,1],"settings":{"lr_scale":0.5}}]}',
        '{"event":{"kind":"report","worker":1,"clock":1,"time_s":0.25,"samples":8,"step_s":0.25,"loss":0.5},'
        '"decisions":[{"kind":"sync","workers":[1]},{"kind":"wake","time_s":0.5}]}',
        '{"event":{"kind":"left","worker":0,"time_s":0.5,"clock":0},'
        '"decisions":[{"kind":"cancel","workers":[1]},{"kind":"proceed","workers":[1],"exchange":"replicas"}]}',
        '{"event":{"kind":"alarm","time_s":0.5},'
        '"decisions":[{"kind":"sync","workers":[1],"what":"deltas","weights":[2.0]}]}',
    ]


def parsed_or_error(lines: Iterable[str]) -> Trace | str:
    try:
        return Trace.parse(lines, "t")
    except TraceError as error:
        return str(error)


def test_truncated_anywhere() -> None:
    """Whatever is cut off the end is an error that names the last line, or leaves whole lines."""
    text = written(run())
    for end in range(len(text)):
        part = text[:end]
        result = parsed_or_error(io.StringIO(part))
        if isinstance(result, str):
            assert result.startswith(f"t:{max(1, len(part.splitlines()))}: ")
        else:
            assert written(result).rstrip() == part.rstrip()


GOOD = written(run()).splitlines()


@pytest.mark.parametrize(
    ("number", "line", "message"),
    [
        (1, "", "t:1: not JSON"),
        (1, "[]", "t:1: expected an object"),
        (1, "{}", "t:1: format must be 1 but got None; is this a trace"),
        (1, GOOD[0].replace('"format":1', '"format":2'), "t:1: format must be 1 but got 2"),
        (1, GOOD[0].replace("workers", "walkers"), "t:1: bad header"),
        (1, GOOD[0].replace('"workers":2', '"workers":0'), "t:1: bad header: workers must be a whole number"),
        (1, GOOD[0].replace("cluster", "claster"), "t:1: bad header"),
        (2, "garbage", "t:2: not JSON"),
        (2, '"text"', "t:2: expected an object"),
        (2, "{}", "t:2: bad entry"),
        (2, GOOD[1].replace("joined", "jained"), "t:2: bad entry"),
        (2, GOOD[1].replace("time_s", "time"), "t:2: bad entry"),
        (2, GOOD[1].replace('{"kind":"proceed"', '3,{"kind":"proceed"'), "t:2: bad entry"),
        (2, '{"event":[],"decisions":[]}', "t:2: bad entry"),
        (2, '{"event":{"kind":[]},"decisions":[]}', "t:2: bad entry"),
        (2, '{"event":{"kind":"alarm","time_s":1.0},"decisions":3}', "t:2: bad entry"),
        (2, GOOD[1].replace('"kind":"proceed"', '"kind":"proceed","settings":3'), "t:2: bad entry"),
        (2, GOOD[1].replace('"kind":"proceed"', '"kind":"proceed","settings":{"x":3}'), "t:2: bad entry"),
        (1, GOOD[0].replace('"about":{', '"about":null,"x":{'), "t:1: bad header"),
        (2, GOOD[1].replace('"time_s":0.0', '"time_s":null'), "t:2: bad entry: .*time_s cannot be None"),
        (2, GOOD[1].replace('"workers":[', '"clock":0.5,"workers":[', 1), "t:2: bad entry: .*clock cannot be 0.5"),
        (2, GOOD[1].replace('"workers":[', '"clock":true,"workers":[', 1), "t:2: bad entry: .*clock cannot be True"),
        (2, GOOD[1].replace('"workers":[', '"workers":[{},'), "t:2: bad entry: .*workers cannot be"),
        (
            2,
            GOOD[1].replace('"kind":"proceed"', '"kind":"proceed","exchange":"x"'),
            "t:2: bad entry: .*exchange cannot",
        ),
        (
            2,
            GOOD[1].replace('"kind":"proceed"', '"kind":"proceed","settings":{"lr_scale":"x"}'),
            "t:2: bad entry: .*lr_scale cannot be 'x'",
        ),
    ],
)
def test_foreign_lines(number: int, line: str, message: str) -> None:
    lines = [*GOOD[: number - 1], line, *GOOD[number:]]
    with pytest.raises(TraceError, match=message) as error:
        Trace.parse(lines, "t")
    assert "\n" not in str(error.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["kind", "workers", "x"]), inner),
    max_leaves=8,
)


@quick
@given(event=json_values, decided=json_values)
def test_any_json_is_an_entry_or_a_clear_error(event: Any, decided: Any) -> None:
    line = json.dumps({"event": event, "decisions": decided})
    result = parsed_or_error([GOOD[0], line])
    assert isinstance(result, Trace) or result.startswith("t:2: bad entry")


def test_unreadable_file(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"cannot read trace .*none"):
        Trace.load(tmp_path / "none")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match=r"cannot read trace .*binary"):
        Trace.load(tmp_path / "binary")


def test_replay() -> None:
    trace = run()
    assert tuple(replay(BSP(), trace)) == trace.entries


@pytest.mark.parametrize("value", [None, "bsp", 3, BSP])
def test_replay_refuses_what_is_no_policy_or_no_trace(value: Any) -> None:
    with pytest.raises(UsageError, match=r"needs a policy, as in parse_policy\('ssp:3'\), but got "):
        replay(value, run())
    with pytest.raises(UsageError, match=r"needs a trace, as in Trace.load\('bsp.jsonl'\), but got "):
        replay(BSP(), value)


def test_a_trace_is_loaded_from_a_path_only() -> None:
    number: Any = 3
    with pytest.raises(UsageError, match="path must be a path but got 3"):
        Trace.load(number)


def test_replay_of_another_policy_stops_at_the_first_difference() -> None:
    entries = replay(ASP(), run())
    assert next(entries) == run().entries[0]
    with pytest.raises(TraceError, match=r"replay of asp differs at line 3: it decides \(Sync.*, the trace has \(\)"):
        next(entries)
