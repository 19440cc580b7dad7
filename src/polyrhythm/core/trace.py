"""Traces: everything that a policy was told and decided, as JSON lines, and the replay that checks it.

The first line is the header, each further line one event with its decisions. The text is a function of the values
alone (field order as declared, shortest floats), so equal runs give equal bytes.
"""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, Literal, NamedTuple, TextIO, TypeVar, get_args, get_origin, get_type_hints

from polyrhythm.core.arguments import path_of
from polyrhythm.core.policy import Policy
from polyrhythm.core.policy_state import decode_state
from polyrhythm.core.types import (
    Alarm,
    Cancel,
    Cluster,
    Decision,
    Decisions,
    Event,
    Joined,
    Left,
    LossMeasured,
    MeasureLoss,
    Outer,
    Proceed,
    Report,
    Settings,
    Stop,
    Stopped,
    Sync,
    Wake,
)
from polyrhythm.errors import TraceError, UsageError, shown

FORMAT = 1
"""Version of the line format; a reader refuses any other."""

EVENTS: dict[str, type[Event]] = {
    "joined": Joined,
    "report": Report,
    "left": Left,
    "stopped": Stopped,
    "loss_measured": LossMeasured,
    "alarm": Alarm,
}
DECISIONS: dict[str, type[Decision]] = {
    "sync": Sync,
    "proceed": Proceed,
    "cancel": Cancel,
    "stop": Stop,
    "wake": Wake,
    "measure_loss": MeasureLoss,
}
TAGS: dict[type[Event] | type[Decision], str] = {
    **{cls: tag for tag, cls in EVENTS.items()},
    **{cls: tag for tag, cls in DECISIONS.items()},
}

NESTED: dict[str, type[Settings] | type[Outer]] = {"settings": Settings, "outer": Outer}
"""Fields that hold a frozen value of their own."""

TAKEN: dict[Any, set[type]] = {int: {int}, float: {int, float}}
"""Types of what is read for a number: a whole one stands for itself."""

Read = TypeVar("Read")


class Entry(NamedTuple):
    """One event and what the policy decided."""

    event: Event
    decisions: Decisions


@dataclass(frozen=True)
class Header:
    """What a trace is of. `about` holds whatever the writer wants a reader to know: scenario, seed, versions.

    Its `state` is that in which the policy began, if it went on from a checkpoint; see `polyrhythm.core.policy_state`.
    """

    policy: str
    cluster: Cluster
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Trace:
    """A whole run in memory: what a policy was told, and what it decided.

    >>> lines = [
    ...     '{"format":1,"policy":"asp","cluster":{"workers":1},"about":{}}',
    ...     '{"event":{"kind":"joined","workers":[0],"time_s":0.0},"decisions":[{"kind":"proceed","workers":[0]}]}',
    ... ]
    >>> Trace.parse(lines).entries[0].decisions
    (Proceed(workers=(0,), exchange='gradients', settings=None, shares=None),)
    """

    header: Header
    entries: tuple[Entry, ...]
    remarks: tuple[tuple[int, str], ...] = ()
    """What the policy remarked (see `Policy.remark`), each with the index of its entry."""

    @classmethod
    def load(cls, path: str | Path) -> "Trace":
        """Read a trace; `TraceError` names the line that is wrong."""
        try:
            with open(path_of("path", path), encoding="utf-8") as lines:
                return cls.parse(lines, str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise TraceError(f"cannot read trace {str(path)!r}: {error}") from error

    @classmethod
    def parse(cls, lines: Iterable[str], name: str = "trace") -> "Trace":
        """Read a trace from its lines."""
        numbered = enumerate(lines, 1)
        header = read_header(next(numbered, (1, ""))[1], name)
        read = [read_entry(line, f"{name}:{number}") for number, line in numbered]
        remarks = tuple((index, remark) for index, (_, remark) in enumerate(read) if remark)
        return cls(header, tuple(entry for entry, _ in read), remarks)

    def save(self, path: str | Path) -> None:
        """Write a trace that `load` reads back equal."""
        with open(path, "w", encoding="utf-8", newline="\n") as stream:
            writer, remarks = TraceWriter(stream, self.header), dict(self.remarks)
            for index, entry in enumerate(self.entries):
                writer.remark(remarks.get(index, ""))
                writer.write(*entry)


class TraceWriter:
    """Writes a trace while it happens."""

    def __init__(self, stream: TextIO, header: Header) -> None:
        self._stream = stream
        self._remark = ""
        self._line({"format": FORMAT, "policy": header.policy, "cluster": plain(header.cluster), "about": header.about})

    def remark(self, text: str) -> None:
        """What the policy remarks about the entry that is written next."""
        self._remark = text

    def write(self, event: Event, decisions: Decisions) -> None:
        """Append one entry."""
        line: dict[str, Any] = {"event": tagged(event), "decisions": [tagged(decision) for decision in decisions]}
        if self._remark:
            line["remark"], self._remark = self._remark, ""
        self._line(line)

    def _line(self, value: dict[str, Any]) -> None:
        self._stream.write(json.dumps(value, separators=(",", ":")) + "\n")


def plain(value: Any) -> dict[str, Any]:
    """Fields of a frozen value; those at their defaults are left out."""
    result = {}
    kind: Any = type(value)
    for name, default in defaults(kind):
        item = getattr(value, name)
        if item != default:
            result[name] = plain(item) if isinstance(item, Settings | Outer) else item
    return result


@cache
def defaults(cls: Any) -> tuple[tuple[str, Any], ...]:
    """Names of the fields of a dataclass or a named tuple with their defaults, in order."""
    if issubclass(cls, tuple):
        return tuple((name, cls._field_defaults.get(name, MISSING)) for name in cls._fields)
    return tuple((f.name, f.default) for f in fields(cls))


def tagged(value: Event | Decision) -> dict[str, Any]:
    """`plain` with the kind of value in front."""
    return {"kind": TAGS[type(value)], **plain(value)}


def read_header(line: str, where: str) -> Header:
    """The first line of a trace."""
    value = read_json(line, f"{where}:1")
    if value.get("format") != FORMAT:
        raise TraceError(f"{where}:1: format must be {FORMAT} but got {value.get('format')!r}; is this a trace?")
    try:
        cluster = Cluster(**value["cluster"])
        return made(Header, {"policy": value["policy"], "cluster": cluster, "about": value["about"]})
    except (KeyError, TypeError, ValueError) as error:
        raise TraceError(f"{where}:1: bad header: {error}") from error


def read_entry(line: str, where: str) -> tuple[Entry, str]:
    """A further line of a trace, and what the policy remarked about it."""
    value = read_json(line, where)
    try:
        event = read_tagged(value["event"], EVENTS)
        entry = Entry(event, tuple(read_tagged(decision, DECISIONS) for decision in value["decisions"]))
        return entry, str(value.get("remark", ""))
    except (KeyError, TypeError, AttributeError) as error:
        raise TraceError(f"{where}: bad entry: {error!r}") from error


def read_json(line: str, where: str) -> dict[str, Any]:
    """One line as an object."""
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise TraceError(f"{where}: not JSON ({error}); was the trace cut off?") from error
    if not isinstance(value, dict):
        raise TraceError(f"{where}: expected an object but got {line.strip()[:40]!r}")
    return value


def read_tagged(value: dict[str, Any], kinds: dict[str, type[Read]]) -> Read:
    """Undo `tagged`."""
    arguments: dict[str, Any] = {
        key: tuple(item) if isinstance(item, list) else item for key, item in value.items() if key != "kind"
    }
    for key in NESTED.keys() & arguments.keys():
        arguments[key] = made(NESTED[key], arguments[key])
    return made(kinds[value["kind"]], arguments)


def made(kind: type[Read], arguments: dict[str, Any]) -> Read:
    """An instance of a class whose fields have values of the types that it declares."""
    result = kind(**arguments)
    cls: Any = kind
    checks = checks_of(cls)
    for name, value in arguments.items():
        if not checks[name](value):
            raise TypeError(f"{name} cannot be {shown(value)}")
    return result


@cache
def checks_of(kind: Any) -> dict[str, Callable[[Any], bool]]:
    """Of each field whether it may have a value."""
    return {name: check_of(hint) for name, hint in get_type_hints(kind).items()}


def check_of(hint: Any) -> Callable[[Any], bool]:
    """Whether a value is of a type that a field of events and decisions declares.

    >>> check_of(tuple[float, ...] | None)((1, 0.5)), check_of(tuple[int, int])((1, 2, 3)), check_of(int)(True)
    (True, False, False)
    """
    options, origin = get_args(hint), get_origin(hint)
    if origin is Literal:
        return lambda value: value in options
    if origin is tuple:
        each, length = TAKEN[options[0]], None if options[-1] is ... else len(options)
        return lambda value: isinstance(value, tuple) and {*map(type, value)} <= each and length in (None, len(value))
    if origin is UnionType:
        checks = [check_of(option) for option in options]
        return lambda value: any(check(value) for check in checks)
    kinds = TAKEN.get(hint, {origin or hint})
    return lambda value: type(value) in kinds


def replay(policy: Policy[Any], trace: Trace) -> Iterator[Entry]:
    """Show `policy` the events of `trace` again and yield what it decides.

    Raises:
        UsageError: for something else than a policy and a trace, at once.
        TraceError: at the first event where the decisions differ from those in the trace.

    >>> from polyrhythm.policies import parse_policy
    >>> trace = Trace(Header("asp", Cluster(1)), (Entry(Joined((0,), 0.0), (Proceed((0,)),)),))
    >>> [len(entry.decisions) for entry in replay(parse_policy("asp"), trace)]
    [1]
    """
    given: tuple[Any, Any] = policy, trace
    if not isinstance(given[0], Policy):
        raise UsageError(f"replay needs a policy, as in parse_policy('ssp:3'), but got {policy!r}")
    if not isinstance(given[1], Trace):
        raise UsageError(f"replay needs a trace, as in Trace.load('bsp.jsonl'), but got {trace!r}")
    return _replayed(policy, trace)


def _replayed(policy: Policy[Any], trace: Trace) -> Iterator[Entry]:
    kept = trace.header.about.get("state")
    state = decode_state(kept) if kept else policy.init(trace.header.cluster)
    for number, (event, recorded) in enumerate(trace.entries, 2):
        state, decisions = policy.decide(state, event)
        if decisions != recorded:
            raise TraceError(
                f"replay of {policy.spec} differs at line {number}: it decides {decisions}, the trace has {recorded}"
            )
        yield Entry(event, decisions)
