"""The architecture as it is written in docs/design.md: who may import whom, and how large a file may grow."""

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"

# A package may import itself and those of earlier rows; side by side in one row they do not know each other.
LAYERS = (
    ("errors", "lines"),
    ("early_end",),
    ("core",),
    ("policies",),
    ("training", "telemetry"),
    ("sim", "runtime"),
    ("emulation",),
    ("doctor", "report", "search", "rl"),
    ("live",),
    ("cli", "testing"),
)
LAYER = {package: number for number, row in enumerate(LAYERS) for package in row}
STANDARD_ONLY = ("errors", "lines", "early_end", "core", "policies")

ROOMS = {
    "wire": set[str](),
    "server": {"wire"},
    "checkpoint": {"wire"},
    "collectives": {"wire"},
    "coordinator": {"wire", "server", "checkpoint"},
    "launch": {"wire"},
    "worker": {"wire", "collectives", "launch", "checkpoint"},
    "script": {"wire", "worker", "collectives", "launch"},
}
"""The rooms of the runtime, and which others each may import; `wire` is the ground floor on which all stand."""

MAX_LINES = 400
MAX_FILES = 16
"""Of a package, without its ``__init__``; `policies` holds one policy a file, however many there are."""


def module_name(path: Path) -> str:
    """``src/polyrhythm/core/__init__.py`` is polyrhythm.core."""
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted(SOURCE.rglob("*.py"))}


def imported(tree: ast.AST, package: str) -> Iterator[str]:
    """Modules that the code imports anywhere, in functions too; of ``from a import b``, a.b if that is a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = importlib.util.resolve_name("." * node.level + (node.module or ""), package)
            names = [f"{base}.{alias.name}" for alias in node.names]
            yield from (name if name in MODULES else base for name in names)


def imports_of(module: str) -> set[str]:
    path = MODULES[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    return set(imported(ast.parse(path.read_text(encoding="utf-8")), package))


def package_of(module: str) -> str | None:
    """The part of Polyrhythm that a module belongs to; None for the top itself and for foreign modules."""
    parts = module.split(".")
    return parts[1] if parts[0] == "polyrhythm" and len(parts) > 1 else None


def test_every_way_to_import_is_seen() -> None:
    code = "import os.path\ndef f():\n    from ..core import types, parse_spec\n    from . import bsp\n"
    found = {"os.path", "polyrhythm.core.types", "polyrhythm.core", "polyrhythm.policies.bsp"}
    assert set(imported(ast.parse(code), "polyrhythm.policies")) == found


@pytest.mark.parametrize("module", [name for name in MODULES if package_of(name) in LAYER])
def test_imports_go_one_way(module: str) -> None:
    own = package_of(module)
    assert own is not None
    others = {package for name in imports_of(module) if (package := package_of(name)) not in (None, own)}
    above = {package for package in others if LAYER.get(str(package), len(LAYERS)) >= LAYER[own]}
    assert not above, f"{module} imports {above}, which do not stand below {own}"


def room_of(module: str) -> str:
    """The room of the runtime that a module stands in, or nothing."""
    parts = module.split(".")
    return parts[2] if parts[:2] == ["polyrhythm", "runtime"] and len(parts) > 2 else ""


@pytest.mark.parametrize("module", [name for name in MODULES if room_of(name)])
def test_rooms_of_the_runtime_import_what_stands_below(module: str) -> None:
    own = room_of(module)
    others = {room for name in imports_of(module) if (room := room_of(name)) not in ("", own)}
    assert others <= ROOMS[own], f"{module} imports {others - ROOMS[own]}"


@pytest.mark.parametrize("room", ROOMS)
def test_each_room_says_what_it_is_for(room: str) -> None:
    text = MODULES[f"polyrhythm.runtime.{room}"].read_text(encoding="utf-8")
    parts = ("\nWhat it is for: ", "\nWhat comes in: ", "\nWhat goes out: ", "\nIt imports ")
    assert [part for part in parts if part not in text] == []


def test_the_design_names_all_rooms_and_what_they_import() -> None:
    design = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|[^|]*\| ?([^|]*)\|$", design[design.index("| room |") :], re.MULTILINE)
    named = {room: {*re.findall(r"\w+", others)} for room, others in rows[: len(ROOMS)]}
    assert named == {room: others - {"wire"} for room, others in ROOMS.items()}


def test_no_package_is_crowded() -> None:
    crowds: dict[str, int] = {}
    for name, path in MODULES.items():
        if path.name != "__init__.py":
            crowds[name.rpartition(".")[0]] = crowds.get(name.rpartition(".")[0], 0) + 1
    del crowds["polyrhythm.policies"]
    assert {package: files for package, files in crowds.items() if files > MAX_FILES} == {}


def test_the_library_does_not_know_its_experiments() -> None:
    assert [name for name in MODULES if any(one.startswith("polyrhythm_experiments") for one in imports_of(name))] == []


def test_every_package_has_a_layer() -> None:
    assert {package_of(name) for name in MODULES} - set(LAYER) <= {None, "__main__"}


@pytest.mark.parametrize("module", [name for name in MODULES if package_of(name) in STANDARD_ONLY])
def test_the_rules_need_the_standard_library_only(module: str) -> None:
    roots = {name.partition(".")[0] for name in imports_of(module)}
    assert roots <= sys.stdlib_module_names | {"polyrhythm"}


def test_no_module_imports_itself_through_others() -> None:
    # The top names its public names for type checkers only, and looks them up when they are used.
    modules = MODULES.keys() - {"polyrhythm"}
    graph = {module: (imports_of(module) & modules) - {module} for module in modules}
    assert len(list(TopologicalSorter(graph).static_order())) == len(modules)


@pytest.mark.parametrize(
    "module",
    [
        "polyrhythm",
        "polyrhythm.policies",
        "polyrhythm.cli",
        "polyrhythm.live.__main__",
        "polyrhythm.runtime.launch.torchrun",
    ],
)
def test_torch_is_not_imported_before_it_is_needed(module: str) -> None:
    code = f"import sys, {module}; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("module", MODULES)
def test_every_module_says_what_it_is(module: str) -> None:
    assert ast.get_docstring(ast.parse(MODULES[module].read_text(encoding="utf-8")))


@pytest.mark.parametrize("folder", ["src", "experiments", "tests", "benchmarks", "examples", "docs"])
def test_files_fit_a_readers_head(folder: str) -> None:
    lengths = {path: path.read_text(encoding="utf-8").count("\n") for path in (ROOT / folder).rglob("*.py")}
    assert {path: length for path, length in lengths.items() if length > MAX_LINES} == {}
