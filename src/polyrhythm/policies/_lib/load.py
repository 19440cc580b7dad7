"""Finds policy classes: the built-in ones, those that installed packages register, and a user's own file or module.

A package registers its policies in the entry-point group ``polyrhythm.policies``. A file or a module needs no
registration: ``./my_policy.py:Mine:k=3`` and ``my_package.rules:Mine:k=3`` are specs like any other. A name with a dot
is such a reference, so a module at the top level is written as a file.
"""

import re
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isabstract
from pathlib import Path
from types import ModuleType
from typing import Any, TypeGuard

from polyrhythm.core import Policy
from polyrhythm.errors import USERS, SpecError, UsageError, did_you_mean, line_of, may_raise, shown

GROUP = "polyrhythm.policies"

NO_REFERENCE = re.compile(r"[-+.\de]*|[^:]*@[-+.\de]*")
"""What has a dot and is a number, or ends in a share."""


class Catalogue(Mapping[str, type[Policy[Any]]]):
    """Policy classes by name. It lists built-in and registered ones, and also finds ``path/file.py:Class`` and
    ``package.module:Class``.
    """

    def __init__(self, built_in: Mapping[str, type[Policy[Any]]]) -> None:
        self._built_in = built_in

    @cached_property
    def _registered(self) -> dict[str, EntryPoint]:
        return {entry.name: entry for entry in entry_points(group=GROUP)}

    def __getitem__(self, name: str) -> type[Policy[Any]]:
        if name in self._built_in:
            return self._built_in[name]
        if "." in name and not NO_REFERENCE.fullmatch(name):
            return load_reference(name)
        return load_registered(self._registered[name])

    def __iter__(self) -> Iterator[str]:
        return iter({**self._built_in, **self._registered})

    def __len__(self) -> int:
        return len({**self._built_in, **self._registered})


class LoadedCatalogue(Catalogue):
    """The same without files and modules that would have to be run first."""

    def __getitem__(self, name: str) -> type[Policy[Any]]:
        place = name.rpartition(":")[0]
        if place and (module_of_file(place) if place.endswith(".py") else place) not in sys.modules:
            raise SpecError(
                f"policy {name!r} is code that this job does not run yet; start the job with --allow-policy-files"
            )
        return super().__getitem__(name)


def load_registered(entry: EntryPoint) -> type[Policy[Any]]:
    try:
        found = entry.load()
    except may_raise() as error:
        raise SpecError(f"policy {entry.name!r} of {entry.value} cannot be loaded: {told(error)}") from error
    return checked(found, entry.name)


def load_reference(reference: str) -> type[Policy[Any]]:
    """The class that ``path/file.py:Class`` or ``package.module:Class`` names."""
    place, _, name = reference.rpartition(":")
    if "\0" in place:
        raise SpecError(f"policy file {place!r} does not exist; its name has a character that no file's has")
    if not place:
        raise SpecError(f"policy {reference!r} names no class; write '{reference}:MyPolicy'")
    if "/" in place and not place.endswith(".py"):
        raise SpecError(f"policy file {place!r} is no Python file; end its name in .py")
    module = load_file(place) if place.endswith(".py") else load_module(place)
    if not hasattr(module, name):
        classes = [
            key for key, value in vars(module).items() if is_policy(value) and value.__module__ == module.__name__
        ]
        raise SpecError(f"{place!r} has no class {name!r}: {did_you_mean(name, classes)}")
    return checked(getattr(module, name), reference)


def checked(found: object, name: str) -> type[Policy[Any]]:
    if not is_policy(found):
        raise SpecError(f"{name!r} is not a policy; derive the class from polyrhythm.core.Policy")
    if isabstract(found):
        raise SpecError(f"policy {name!r} lacks {', '.join(sorted(found.__abstractmethods__))}")
    # A policy writes its own spec under this name, so the spec in a trace or a result finds the class again.
    found.name = name
    return found


def is_policy(value: object) -> TypeGuard[type[Policy[Any]]]:
    return isinstance(value, type) and issubclass(value, Policy)


def load_module(name: str) -> ModuleType:
    try:
        return import_module(name)
    except may_raise() as error:
        raise SpecError(
            f"policy module {name!r} cannot be imported: {told(error)}; give its file as './name.py'"
        ) from error


def told(error: BaseException) -> str:
    """Why code of the user's own cannot be loaded, and in which line."""
    if isinstance(error, SyntaxError):
        return f"{type(error).__name__}: {error}"  # which names the file and the line
    return f"{error if isinstance(error, UsageError) else shown(error)}{line_of(error)}"


def module_of_file(path: str) -> str:
    """Under which name a file is loaded."""
    return f"{USERS}{Path(path).resolve()}"


def load_file(path: str) -> ModuleType:
    """A Python file as a module; the same file is loaded once, so that its classes are the same every time."""
    file, name = Path(path).resolve(), module_of_file(path)
    if name in sys.modules:
        return sys.modules[name]
    if not file.is_file():
        raise SpecError(f"policy file {path!r} does not exist; a relative path starts at {str(Path.cwd())!r}")
    spec = spec_from_file_location(name, file)
    assert spec, f"{file} does not end in .py"
    assert spec.loader
    # Dataclasses and pickle look a class up in its module while the file still runs.
    module = sys.modules[name] = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except may_raise() as error:
        del sys.modules[name]
        raise SpecError(f"policy file {path!r} cannot be loaded: {told(error)}") from error
    return module
