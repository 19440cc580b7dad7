"""The files that a command was asked to write: proved writable before anything runs, written after."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import typer

from polyrhythm import __version__
from polyrhythm.cli.group import FAILED
from polyrhythm.errors import UsageError
from polyrhythm.lines import say
from polyrhythm.report.picture import check_pictures
from polyrhythm.report.timeline import Timeline, load_timeline
from polyrhythm.telemetry.files import check_writable, make_folder, write_whole
from polyrhythm.telemetry.result import RunResult

PAGE_ENTRIES = 200_000
"""Most trace entries that a page reads, all policies together: some seconds."""

PICTURE_ENTRIES = 400


@dataclass(frozen=True)
class Outputs:
    json: Path | None = None
    report: Path | None = None
    trace: Path | None = None
    timeline: Path | None = None
    perfetto: Path | None = None
    source: str = ""
    """What the scenario was read from, which is not to be written over."""

    def prepare(self) -> None:
        """Make missing folders; an error names the option whose path cannot be written."""
        if self.trace is not None:
            make_folder("--trace", self.trace)
        files = {f"--{option}": getattr(self, option) for option in ("json", "report", "timeline", "perfetto")}
        check_apart({"SCENARIO": Path(self.source) if self.source else None, "--trace": self.trace, **files})
        for option, path in files.items():
            if path is not None:
                check_writable(option, path)
        if self.timeline is not None:
            check_picture("--timeline", self.timeline)

    @property
    def need_traces(self) -> bool:
        return self.trace is None and any((self.report, self.timeline, self.perfetto))

    def write(self, command: str, scenario: Any, scenario_toml: str, results: Sequence[RunResult]) -> None:
        """Write everything but the traces, which the runs have written."""
        kept = [result if self.trace else msgspec.structs.replace(result, trace_path=None) for result in results]
        traced = next((result.trace_path for result in results if result.trace_path), None)
        write_files(
            (self.json, lambda: as_json(command, scenario, kept)),
            (self.report, lambda: as_page(command, scenario_toml, results)),
            (self.timeline if traced else None, lambda: as_picture(str(traced))),
            (self.perfetto if traced else None, lambda: as_perfetto(str(traced))),
        )


TRACES = (".jsonl", ".ring", ".parquet")
"""How the files end that folders of traces are read for."""

FOLDERS = ("--trace", "--from", "TRACES")
"""What such folders are given as."""


def check_apart(files: Mapping[str, Path | None], traces: tuple[str, ...] = TRACES) -> None:
    """Whether the files, by what they were given as, are different ones, and none is among the traces of a folder;
    devices may be the same."""
    given = {name: path for name, path in files.items() if path is not None}
    folders = {given[name].resolve(): name for name in FOLDERS if name in given and given[name].is_dir()}
    known: dict[Path, str] = {}
    for name, path in given.items():
        if path.exists() and not path.is_file():
            continue
        other = known.setdefault(path.resolve(), name)
        if other != name:
            raise UsageError(f"{other} and {name} are the same file {str(path)!r}; give each a file of its own")
        if path.name.endswith(traces) and (folder := folders.get(path.parent.resolve())):
            raise UsageError(f"{name} {str(path)!r} would be among the traces of {folder}; end its name otherwise")


def check_picture(option: str, path: Path) -> None:
    if path.suffix.lower() not in ("", ".svg"):
        raise UsageError(f"{option} {str(path)!r} would be an SVG picture; end its name in .svg")
    check_pictures(option)


def write_files(*files: tuple[Path | None, Callable[[], str | bytes]]) -> None:
    """Write each file that has a path; one that cannot be written is a line, and leaves when all others are there."""
    troubles = []
    for path, content in files:
        if path is not None:
            text = content()
            try:
                write_whole(path, text.encode() if isinstance(text, str) else text)
            except OSError as error:
                troubles.append(f"{str(path)!r} cannot be written: {error.strerror}")
    say(*troubles)
    if troubles:
        raise typer.Exit(FAILED)


def json_document(value: Any) -> bytes:
    """Indented, with a line end; what is not finite is null."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def as_json(command: str, scenario: Any, results: Sequence[RunResult]) -> bytes:
    """One object per policy and seed, and what made them; what is not finite is null."""
    return json_document({"command": command, "version": __version__, "scenario": scenario, "results": list(results)})


def as_page(command: str, scenario_toml: str, results: Sequence[RunResult]) -> str:
    from polyrhythm.report.page import Comparison, render

    first = {result.policy: result.trace_path for result in reversed(results) if result.trace_path}
    # On real workers the first trace of `auto` is of what it begins with.
    timelines = [
        replace(load_timeline(path, PAGE_ENTRIES // len(first)), policy=policy)
        for policy, path in reversed(first.items())
    ]
    return render(Comparison(command, scenario_toml, results, [t for t in timelines if t.spans]))


def as_picture(trace: str) -> str:
    from polyrhythm.report.timeline_figure import timeline_svg

    return timeline_svg([load_timeline(trace, PICTURE_ENTRIES)])


def as_perfetto(trace: str | Path) -> str:
    from polyrhythm.report.perfetto import to_perfetto

    timeline: Timeline = load_timeline(trace)
    return json.dumps(to_perfetto(timeline), separators=(",", ":"))
