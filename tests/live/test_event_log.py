"""Events as JSON lines."""

from pathlib import Path

import msgspec
import pytest

from polyrhythm.live.event_log import SCHEMA, EventLog
from polyrhythm.live.model import view_of
from polyrhythm.runtime.wire.control_protocol import JobEvent
from tests.live.statuses import event, status


def write(log: EventLog, *numbers: int) -> None:
    now = status()
    log.see(now, view_of(now), [event(number) for number in numbers])


def test_every_event_is_a_line_of_the_schema(tmp_path: Path) -> None:
    log = EventLog(str(tmp_path / "events.jsonl"))
    write(log, 1, 2)
    write(log)
    write(log, 3)
    log.close()
    lines = (tmp_path / "events.jsonl").read_bytes().splitlines()
    assert [msgspec.json.decode(line, type=JobEvent) for line in lines] == [event(1), event(2), event(3)]
    fields = SCHEMA["$defs"]["JobEvent"]
    assert set(fields["properties"]) == {"number", "time_s", "kind", "text", "rank"}
    assert fields["required"] == ["number", "time_s", "kind", "text"]


@pytest.mark.parametrize("path", ["/dev/full", "/nowhere/events.jsonl"])
def test_a_file_that_cannot_be_written_is_one_line_and_no_more(path: str, capfd: pytest.CaptureFixture[str]) -> None:
    log = EventLog(path)
    write(log, 1)
    write(log, 2)
    log.close()
    err = capfd.readouterr().err
    assert err.count("\n") == 1
    assert f"cannot write events to {path}" in err
