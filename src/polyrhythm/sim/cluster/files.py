"""Scenario files: built in or given, with overrides, and errors that name the place."""

import re
from collections.abc import Mapping
from importlib import resources
from numbers import Integral, Real
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec
import tomli_w

from polyrhythm.core.arguments import path_of
from polyrhythm.core.toml import MOST_PARTS, read_toml
from polyrhythm.errors import ScenarioError, did_you_mean, shown
from polyrhythm.sim.cluster.scenario import Scenario

NONE = "none"
"""As an override, takes a key away."""


def built_in_scenarios() -> dict[str, str]:
    """Names of the built-in scenarios, each with its one-line description."""
    return {name: parse(text, name).description for name, text in built_in_texts().items()}


def load_scenario(name_or_path: str | Path, overrides: Mapping[str, str] | None = None) -> Scenario:
    """A built-in scenario or a TOML file, with some of its fields replaced.

    Args:
        name_or_path: a name of `built_in_scenarios`, or the path of a file.
        overrides: values by dotted key, as TOML writes them (quotes may be left out); ``none`` takes a key away.

    Example:
        >>> load_scenario("uniform", {"devices.0.count": "3", "training": "none"}).workers
        3
    """
    path, texts = path_of("name_or_path", name_or_path), built_in_texts()
    check_overrides(overrides)
    if str(name_or_path) in texts:
        return parse(texts[str(name_or_path)], str(name_or_path), overrides)
    try:
        if not path.is_file():
            name = str(name_or_path)
            raise ScenarioError(f"scenario {name!r} is neither a file nor built in: {did_you_mean(name, texts)}")
        return parse(path.read_text(encoding="utf-8"), path.stem, overrides, str(name_or_path))
    except (OSError, UnicodeDecodeError) as error:
        raise ScenarioError(f"cannot read scenario {str(name_or_path)!r}: {error}") from error


def scenario_toml(scenario: Scenario) -> str:
    """The scenario as a file that `load_scenario` reads back equal, with every field that has a value."""
    return tomli_w.dumps(without_none(msgspec.to_builtins(scenario, enc_hook=plain_number)))


def checked(scenario: Scenario) -> Scenario:
    """The scenario, after the checks that reading it from a file would have made."""
    given: Any = scenario
    if not isinstance(given, Scenario):
        remedy = f"load_scenario({given!r})" if isinstance(given, str) else "load_scenario('uniform')"
        raise ScenarioError(f"scenario must be a Scenario but got {given!r}; write {remedy}")
    return convert(msgspec.to_builtins(scenario, enc_hook=plain_number))


def plain_number(value: Any) -> float:
    """A number of another library, such as NumPy's, as Python's own."""
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    raise ScenarioError(f"a scenario has numbers, text, lists and its own classes in it, but got {shown(value)}")


def built_in_texts() -> dict[str, str]:
    folder = resources.files("polyrhythm.sim.cluster") / "scenarios"
    files = sorted((file for file in folder.iterdir() if file.name.endswith(".toml")), key=lambda file: file.name)
    return {file.name.removesuffix(".toml"): file.read_text(encoding="utf-8") for file in files}


def parse(text: str, name: str, overrides: Mapping[str, str] | None = None, place: str = "") -> Scenario:
    try:
        document = read_toml(text)
    except ValueError as error:
        raise ScenarioError(f"scenario {place or name!r} is not TOML: {error}") from error
    document.setdefault("name", name)
    for key, value in (overrides or {}).items():
        override(document, key, value)
    return convert(document)


def check_overrides(overrides: Any) -> None:
    """Refuse what is given and does not say a value for each key."""
    if overrides is not None and not (
        isinstance(overrides, Mapping) and all(isinstance(key, str) for key in overrides)
    ):
        raise ScenarioError(f"overrides must be values by key, as in {{'training.epochs': '5'}}, but got {overrides!r}")


def override(document: dict[str, Any], key: str, value: str) -> None:
    *parents, last = key.split(".")
    if not all((*parents, last)):
        raise ScenarioError(f"override {key!r} has an empty part; write a key such as training.epochs")
    if len(parents) >= MOST_PARTS:
        raise ScenarioError(f"override {key[:40]!r}...: a key has at most {MOST_PARTS} parts")
    place: Any = document
    for parent in parents:
        place = place.setdefault(parent, {}) if isinstance(place, dict) else item(place, parent, key)
    if isinstance(place, list):
        item(place, last, key)
        place[int(last)] = toml_value(value)
    elif not isinstance(place, dict):
        raise ScenarioError(f"override {key!r}: {'.'.join(parents)} is not a table")
    elif value == NONE:
        place.pop(last, None)
    else:
        place[last] = toml_value(value)


def item(place: Any, index: str, key: str) -> Any:
    if not isinstance(place, list) or not index.isdecimal() or int(index) >= len(place):
        known = f"a number below {len(place)}" if isinstance(place, list) else "a table there"
        raise ScenarioError(f"override {key!r}: there is no {index!r}; it needs {known}")
    return place[int(index)]


def toml_value(text: str) -> Any:
    """A value as TOML writes it; what is not TOML is a string."""
    try:
        return read_toml(f"value = {text}")["value"]
    except ValueError:
        return text


def convert(document: dict[str, Any]) -> Scenario:
    """A document as a scenario, or one line that says what is wrong where."""
    try:
        return msgspec.convert(document, Scenario)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, ScenarioError):
            raise error.__cause__ from None
        raise ScenarioError(explain(str(error), document)) from None


def explain(message: str, document: dict[str, Any]) -> str:
    """The validator's message with the place in front, the value that was given, and the known names."""
    problem, _, place = message.partition(" - at `$")
    path = re.findall(r"[^.\[\]`]+", place)
    where = place.rstrip("`").lstrip(".")
    if unknown := re.search(r"unknown field `(.+)`", problem):
        name = unknown[1]
        return f"{'.'.join(filter(None, [where, name]))}: unknown key {name!r}: {did_you_mean(name, keys_at(path))}"
    if missing := re.search(r"required field `(.+)`", problem):
        return f"{'.'.join(filter(None, [where, missing[1]]))} is required; give it"
    given = value_at(document, path)
    if "enum" in problem and isinstance(given, str):
        return f"{where}: unknown value {given!r}: {did_you_mean(given, get_args(type_at(path)))}"
    return f"{where} is wrong: {problem[0].lower()}{problem[1:]}, but got {given!r}"


def keys_at(path: list[str]) -> list[str]:
    return list(get_type_hints(type_at(path)))


def type_at(path: list[str]) -> Any:
    kind: Any = Scenario
    for name in path:
        kind = kind if name.isdecimal() or name == "..." else inner(get_type_hints(kind)[name])
    return kind


def inner(kind: Any) -> Any:
    arguments = get_args(kind)
    if getattr(kind, "__origin__", None) is list or type(None) in arguments:
        return inner(arguments[0])
    return kind


def value_at(document: Any, path: list[str]) -> Any:
    for name in path:
        document = document[int(name)] if isinstance(document, list | tuple) else document.get(name)
    return document


def without_none(value: Any) -> Any:
    """The value without the keys that have none, which TOML cannot write."""
    if isinstance(value, dict):
        return {key: without_none(entry) for key, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [without_none(entry) for entry in value]
    return value
