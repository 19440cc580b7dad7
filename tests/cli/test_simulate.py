import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree as ET

from typer.testing import Result

from polyrhythm.core import Trace

Call = Callable[..., Result]

STUCK = """
from polyrhythm.policies import ASP


class Stuck(ASP):
    def decide(self, state, event):
        return state, ()
"""


def test_one_run_writes_all_that_it_is_asked_for(call: Call, timing: str, tmp_path: Path) -> None:
    names = {"json": "o.json", "report": "o.html", "timeline": "o.svg", "perfetto": "o.perfetto.json"}
    options = [word for option, name in names.items() for word in (f"--{option}", tmp_path / name)]
    done = call("simulate", timing, "--policy", "k-sync:2", "--seed", 3, *options)
    assert (done.exit_code, done.stderr) == (0, "")
    result = json.loads((tmp_path / "o.json").read_text(encoding="utf-8"))["results"]
    assert [(run["policy"], run["seed"], run["trace_path"]) for run in result] == [("k-sync:2", 3, None)]
    assert "k-sync:2" in (tmp_path / "o.html").read_text(encoding="utf-8")
    assert ET.parse(tmp_path / "o.svg").getroot().tag.endswith("svg")
    events = json.loads((tmp_path / "o.perfetto.json").read_text(encoding="utf-8"))["traceEvents"]
    assert sum(event["ph"] == "i" for event in events) == result[0]["updates"]
    assert {path.name for path in tmp_path.iterdir()} == {*names.values(), "three.toml"}


def test_the_trace_is_kept_and_exports(call: Call, timing: str, tmp_path: Path) -> None:
    assert call("simulate", timing, "--policy", "asp", "--trace", tmp_path / "traces").exit_code == 0
    (trace,) = (tmp_path / "traces").iterdir()
    assert Trace.load(trace).header.policy == "asp"
    done = call("trace", "export", trace, "--perfetto", tmp_path / "x.json")
    assert (done.exit_code, done.output) == (0, "")
    assert json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["otherData"] == {"policy": "asp"}


def test_what_is_no_trace_is_one_line(call: Call, timing: str, tmp_path: Path) -> None:
    done = call("trace", "export", timing, "--perfetto", tmp_path / "x.json")
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1
    assert "three.toml:1: not JSON" in done.stderr
    assert not (tmp_path / "x.json").exists()


def test_a_policy_that_fails_is_a_failed_run(call: Call, timing: str, tmp_path: Path) -> None:
    file = tmp_path / "stuck.py"
    file.write_text(STUCK, encoding="utf-8")
    done = call("simulate", timing, "--policy", f"{file}:Stuck")
    assert done.exit_code == 1
    assert len(done.stderr.splitlines()) == 1
    assert "Stuck" in done.stderr
