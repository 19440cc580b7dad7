"""``polyrhythm run --show-config``: every setting of the job, and where its value comes from."""

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from polyrhythm.cli.pilot import add_options, template_of
from polyrhythm.errors import PolyrhythmError

if TYPE_CHECKING:
    from polyrhythm.runtime.wire.job_config import Given, JobConfig

FLAG = "--show-config"


class Row(NamedTuple):
    setting: str
    value: str
    source: str


def config_table(arguments: Sequence[str]) -> str | None:
    """A line a setting, with its value and its source; None if the call does not ask for it."""
    from polyrhythm.runtime.launch.forked import SHOWS

    if not any(word.startswith(SHOWS) for word in arguments):
        return None
    from polyrhythm.runtime.launch.job_file import idle_terms
    from polyrhythm.runtime.launch.run_flags import from_call, given_flags, make_parser

    parser = add_options(make_parser())
    flags = flags_of(parser, arguments)
    if FLAG not in flags:  # it is the script's
        return None
    chosen, overruled = from_call(parser, flags, os.environ)
    if searched(chosen):
        table = [*rows(chosen), *terms(chosen, parser)]
    else:
        given_flags(make_parser(), flags)  # which refuses those of a search, as a run does
        table, overruled = [*rows(chosen)], (*overruled, *idle_terms(chosen))
    return "\n".join([*aligned([Row("setting", "value", "source"), *table]), *notes(chosen), *overruled])


def searched(chosen: "Mapping[str, Given]") -> bool:
    return "policy" in chosen and bool(template_of(str(chosen["policy"].value)))


def terms(chosen: "Mapping[str, Given]", parser: argparse.ArgumentParser) -> Iterator[Row]:
    """Those of the search."""
    from polyrhythm.runtime.launch.job_file import SYNC_SWITCH
    from polyrhythm.runtime.wire.job_config import Given

    for name in SYNC_SWITCH:
        given = chosen.get(name, Given(parser.get_default(name), "default"))
        yield Row(name.replace("_", "-"), text(given.value), given.where)


def flags_of(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> list[str]:
    """Those in front of the script, which may be left out here."""
    from polyrhythm.runtime.launch.run_flags import split_at_script, whole

    try:
        return split_at_script(parser, arguments)[0]
    except PolyrhythmError:
        return [whole(parser, word) for word in arguments]


def rows(chosen: "Mapping[str, Given]") -> Iterator[Row]:
    """All settings; those that need no flag at the end."""
    from polyrhythm.runtime.launch.counts import read_hosts, read_processes
    from polyrhythm.runtime.launch.nodes import TOKEN
    from polyrhythm.runtime.wire.job_config import INTERNAL, TYPES, make_config

    left_open = ("policy",) if searched(chosen) else ()
    config = make_config({k: v for k, v in chosen.items() if k in TYPES and k not in left_open})
    for name in TYPES:
        if name not in INTERNAL:
            yield row(name, config, chosen)
    yield Row("token", *(("set, not shown", TOKEN) if os.environ.get(TOKEN) else ("none", "default")))
    places = config.label("nnodes"), config.label("nproc_per_node")
    workers = read_hosts(config.nnodes, places[0])[1] * read_processes(config.nproc_per_node, places[1])
    yield Row("workers", str(workers), "nnodes and nproc-per-node")


def row(name: str, config: "JobConfig", chosen: "Mapping[str, Given]") -> Row:
    """One setting that has a flag; a policy that a search will name is shown as it was given."""
    source = chosen[name].where if name in chosen else "default"
    value = getattr(config, name) if name in config.given or name not in chosen else chosen[name].value
    return Row(name.replace("_", "-"), "made at the start" if (name, value) == ("job", "") else text(value), source)


def text(value: Any) -> str:
    """A value as it is shown; of a list, what is in it.

    >>> text(None), text(True), text(""), text(0.5)
    ('none', 'true', '""', '0.5')
    """
    if isinstance(value, list):
        value = ", ".join(map(str, value)) or None
    if value is None or isinstance(value, bool):
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) else str(value) or '""'


def aligned(table: Sequence[Row]) -> list[str]:
    widths = [max(len(line[column]) for line in table) for column in range(2)]
    return [f"{name:{widths[0]}}  {value:{widths[1]}}  {source}" for name, value, source in table]


def notes(chosen: "Mapping[str, Given]") -> list[str]:
    from polyrhythm.runtime.wire.job_config import BY_SCRIPT

    names = [name for name in BY_SCRIPT if name not in chosen]
    return [f"the script's session may set, as nobody else has: {', '.join(names)}"] if names else []
