"""The tree of errors: two branches, one file, nothing in it without a use or a word."""

import ast
import importlib
import inspect
import pickle
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import polyrhythm
from polyrhythm import errors
from polyrhythm.errors import ClusterError, PolyrhythmError, UsageError

SOURCE = Path(polyrhythm.__file__).parent
ROOTS = (PolyrhythmError, UsageError, ClusterError)
TREE = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, Exception)]
LEAVES = [kind for kind in TREE if kind not in ROOTS]
FILES = {path: path.read_text(encoding="utf-8") for path in sorted(SOURCE.rglob("*.py"))}


def exceptions_in(path: Path) -> Iterator[str]:
    """Names of the classes that are defined in a file as exceptions."""
    names = {node.name for node in ast.walk(ast.parse(FILES[path])) if isinstance(node, ast.ClassDef)}
    if names and re.search(r"class \w+\(.*(Error|Exception|Exit|Interrupt)\b.*\)", FILES[path]):
        module = importlib.import_module(".".join(path.relative_to(SOURCE.parent).with_suffix("").parts))
        yield from (
            name
            for name in names
            if isinstance(found := getattr(module, name, None), type)
            if issubclass(found, BaseException)
        )


def test_all_errors_live_in_one_file_but_those_of_the_test_kit() -> None:
    elsewhere = {(path.parent.name, name) for path in FILES for name in exceptions_in(path) if path.name != "errors.py"}
    assert {package for package, _ in elsewhere} == {"testing"}


@pytest.mark.parametrize("kind", LEAVES)
def test_an_error_is_of_the_user_or_of_the_cluster(kind: type[PolyrhythmError]) -> None:
    assert issubclass(kind, PolyrhythmError)
    assert issubclass(kind, UsageError) != issubclass(kind, ClusterError)
    assert issubclass(kind, ValueError) != issubclass(kind, RuntimeError)


@pytest.mark.parametrize("kind", TREE)
def test_an_error_is_explained_and_used(kind: type[PolyrhythmError]) -> None:
    assert kind.__doc__
    name = re.compile(rf"\b{kind.__name__}\b")
    assert any(name.search(text) for path, text in FILES.items() if path.name != "errors.py")


@pytest.mark.parametrize("kind", TREE)
def test_an_error_comes_out_of_another_process_as_it_was(kind: type[PolyrhythmError]) -> None:
    copy = pickle.loads(pickle.dumps(kind("the loss is nan")))  # noqa: S301 (our own)
    assert (type(copy), str(copy)) == (kind, "the loss is nan")


def test_who_raises_says_whose_fault_it_is() -> None:
    undecided = [path for path, text in FILES.items() if re.search(r"\b(PolyrhythmError|ClusterError)\(", text)]
    assert [path.name for path in undecided] == ["errors.py"]
