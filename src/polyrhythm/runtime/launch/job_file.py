"""The job file: TOML, with a key for every flag of ``polyrhythm run``; a policy is a spec or a table."""

import os
from collections.abc import Iterable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from polyrhythm.core.toml import read_toml
from polyrhythm.errors import SpecError, UsageError, did_you_mean
from polyrhythm.policies import KNOWN
from polyrhythm.runtime.wire.config_sources import OURS
from polyrhythm.runtime.wire.job_config import INTERNAL, TYPES, Given, converted
from polyrhythm.runtime.wire.setting_values import KINDS, label

LOGS = "what workers print comes out here as it is"
REFUSED = {
    "rdzv_conf": "the coordinator is the meeting point",
    **dict.fromkeys(("log_dir", "logs_specs", "redirects", "tee", "local_ranks_filter"), LOGS),
    **dict.fromkeys(("duplicate_stdout_filters", "duplicate_stderr_filters", "log_line_prefix_template"), LOGS),
    **dict.fromkeys(("numa_binding", "virtual_local_rank"), "workers are started where they are, with their own ranks"),
    "local_addr": "a host's address is the one from which it reaches the first",
    "run_path": "a script is run by its own path",
}
"""Flags of torchrun that would change something and do nothing here, and why; only their defaults are accepted."""

IDLE = (
    *("monitor_interval", "event_log_handler", "role"),
    *("signals_to_handle", "shutdown_timeout"),
)
"""Flags of torchrun that tune its own machinery; accepted, and without effect."""

SYNC_SWITCH: dict[str, type] = {
    "search": bool,
    "job_family": str,
    "store": str,
    "metric": str,
    "data": list,
    "settings": int,
    "runs": int,
    "baseline_runs": int,
    "target": float,
    "walk": str,
    "two_sided": bool,
    "algorithm_1": bool,
    "early": float,
    "beta": float,
    "error_rate": float,
}
"""Keys of the flags that go with ``--policy sync-switch``; without it they have no effect, and a line says so."""

SEARCHED = "sync-switch"
"""The policy that they are for."""

SEARCH_VARIABLES = {name: f"{OURS}{name.upper()}" for name in SYNC_SWITCH}
"""Environment variable of each."""

STORE = SEARCH_VARIABLES["store"]
"""Which ``polyrhythm search`` reads, too."""

KEYS = (*(name for name in TYPES if name not in INTERNAL), *IDLE, *REFUSED, *SYNC_SWITCH)


def read_job_file(path: str) -> dict[str, Any]:
    """Values of a job file by the name of their flag.

    Args:
        path: of the file; messages begin with it.
    """
    try:
        return named(load(path), path)
    except RecursionError:
        raise UsageError(f"job file {path} is nested too deeply; a job file has one level, a policy few") from None


def load(path: str) -> dict[str, Any]:
    try:
        return read_toml(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read job file {path}: {error.strerror}; check --config") from None
    except UnicodeDecodeError:
        raise UsageError(f"job file {path} is no text in UTF-8; write it in TOML") from None
    except ValueError as error:  # also of the parts of TOML, such as a date that is none
        raise UsageError(f"job file {path} is not TOML: {error}") from None


def named(document: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The values by name, each of its type."""
    values: dict[str, Any] = {}
    for key, value in document.items():
        name = key.replace("-", "_")
        if name == "token":
            raise UsageError(
                f"job file {path}: the token is a secret and no key; set POLYRHYTHM_TOKEN in the environment"
            )
        if name not in KEYS:
            known = (known.replace("_", "-") for known in KEYS)
            raise UsageError(f"job file {path}: unknown key {key!r}: {did_you_mean(key, known)}")
        if name in values:
            raise UsageError(f"job file {path} gives {name.replace('_', '-')} twice; leave one out")
        values[name] = read_value(name, value, path)
    return values


def search_terms(environment: Mapping[str, str]) -> dict[str, Given]:
    """What the environment has chosen of a search; an empty variable is none.

    >>> search_terms({"POLYRHYTHM_SEARCH": "true", "POLYRHYTHM_RUNS": "2", "POLYRHYTHM_TARGET": ""})
    {'search': Given(value=True, where='POLYRHYTHM_SEARCH'), 'runs': Given(value=2, where='POLYRHYTHM_RUNS')}
    """
    given = {name: environment[variable] for name, variable in SEARCH_VARIABLES.items() if environment.get(variable)}
    return {name: Given(from_text(name, text), SEARCH_VARIABLES[name]) for name, text in given.items()}


def idle_terms(chosen: Mapping[str, Given]) -> tuple[str, ...]:
    """A line for each term of a search, for a call whose policy asks for none.

    >>> idle_terms({"runs": Given(2, "job.toml"), "epochs": Given(3, "job.toml")})
    ('the policy is not sync-switch, so runs in job.toml has no effect',)
    """
    terms = [label(name, where) for name, (_, where) in chosen.items() if name in SYNC_SWITCH and where != STORE]
    return tuple(f"the policy is not {SEARCHED}, so {term} has no effect" for term in terms)


def from_text(name: str, text: str) -> Any:
    """Several paths are divided as in PATH. What cannot be read is kept; see `check_terms`."""
    kind = SYNC_SWITCH[name]
    try:
        return text.split(os.pathsep) if kind is list else msgspec.convert(text, kind, strict=False)
    except msgspec.ValidationError:
        return text


def is_searched(chosen: Mapping[str, Given]) -> bool:
    return "policy" in chosen and SEARCHED in str(chosen["policy"].value)


def check_terms(chosen: Mapping[str, Given]) -> None:
    """Those of a search that is asked for; without one a variable with a name as common as DATA ends no run."""
    for name, (value, where) in chosen.items():
        if name in SYNC_SWITCH:
            checked(name, value, SYNC_SWITCH[name], where)


def read_value(name: str, value: Any, path: str) -> Any:
    if name == "policy" and isinstance(value, dict):
        return spec_of(value, path)
    if name in SYNC_SWITCH:
        return checked(name, value, SYNC_SWITCH[name], path)
    return converted(name, value, path) if name in TYPES else value


def checked(name: str, value: Any, kind: type, path: str) -> Any:
    if type(value) is kind or (kind is float and type(value) is int):
        return value
    raise UsageError(f"{label(name, path)} must be {KINDS.get(kind, 'a list of texts')} but got {value!r}")


def spec_of(table: Mapping[str, Any], path: str) -> str:
    """The spec that a table means.

    >>> spec_of({"name": "selsync", "delta": 0.3}, "job.toml")
    'selsync:delta=0.3'
    >>> spec_of({"name": "switch", "parts": [{"name": "ssp", "s": 3, "share": 0.25}, "asp"]}, "job.toml")
    'switch:(ssp:s=3)@0.25,asp'
    """
    name = table.get("name")
    if not isinstance(name, str):
        raise SpecError(f"policy in {path} is a table without a name; give it one, as in name = 'ssp'")
    if name not in KNOWN:
        raise SpecError(f"policy in {path}: unknown policy {name!r}: {did_you_mean(name, KNOWN)}")
    parameters = {key: value for key, value in table.items() if key != "name"}
    known = [field.name for field in fields(KNOWN[name])]
    for key in parameters:
        if key not in known:
            raise SpecError(f"policy in {path}: {name} has no parameter {key!r}: {did_you_mean(key, known)}")
        if parameters[key] == []:
            raise SpecError(f"policy in {path}: {key} of {name} is an empty list; name a policy, or leave it out")
        if isinstance(parameters[key], list) and key != known[0]:
            raise SpecError(f"policy in {path}: {key} of {name} must be one value but got {parameters[key]!r}")
    listed = [text for value in parameters.values() if isinstance(value, list) for text in parts(value, path)]
    rest = [f"{k}={text_of(value, path)}" for k, value in parameters.items() if not isinstance(value, list)]
    return ":".join(filter(None, [name, ",".join([*listed, *rest])]))


def parts(values: Iterable[Any], path: str) -> list[str]:
    """The policies of a sequence with their shares."""
    return [part(value, path) if isinstance(value, dict) else str(value) for value in values]


def part(table: Mapping[str, Any], path: str) -> str:
    """A policy of a sequence; its key ``share`` is its share of the workload."""
    spec = spec_of({key: value for key, value in table.items() if key != "share"}, path)
    inner = f"({spec})" if ":" in spec else spec
    return f"{inner}@{table['share']}" if "share" in table else inner


def text_of(value: Any, path: str) -> str:
    """A parameter as a spec writes it."""
    if isinstance(value, dict):
        return f"({spec_of(value, path)})"
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return f"({text})" if "," in text else text
