"""What a program may import: public names, found lazily, and nothing deeper in examples and on pages."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

import polyrhythm

ROOT = Path(__file__).parents[1]
NAMED_BY_THE_PLAN = {
    *("session", "Session", "simulate", "sweep", "compare", "Scenario", "load_scenario", "RunResult"),
    *(
        "Policy",
        "Traits",
        "Bounds",
        "Cluster",
        "Joined",
        "Report",
        "Left",
        "Alarm",
        "Sync",
        "Proceed",
        "Cancel",
        "Wake",
    ),
    *("parse_policy", "Trace", "replay", "PolyrhythmError"),
}
ALIASES = {"Decision", "Decisions", "Event"}
"""Of types; they have no docstring of their own."""

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
CODE = {
    **{str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in sorted(ROOT.glob("examples/*.py"))},
    **{
        f"{path.relative_to(ROOT)}:{number}": block
        for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
        for number, block in enumerate(BLOCK.findall(path.read_text(encoding="utf-8")))
    },
}
PUBLIC = ("polyrhythm", "polyrhythm.testing")


def imports(code: str) -> set[str]:
    """Modules of ours that the code imports from."""
    nodes = list(ast.walk(ast.parse(code)))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    modules = plain | {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    return {module for module in modules if module.partition(".")[0] == "polyrhythm"}


@pytest.mark.parametrize("name", sorted(NAMED_BY_THE_PLAN | {*polyrhythm.__all__}))
def test_each_name_is_there_and_says_what_it_is(name: str) -> None:
    assert name in polyrhythm.__all__
    assert name in dir(polyrhythm)
    value = getattr(polyrhythm, name)
    assert value.__doc__ or name in ALIASES


@pytest.mark.parametrize("name", sorted({*polyrhythm.__all__} - ALIASES - {"Session"}))
def test_each_name_shows_an_example(name: str) -> None:
    """Which runs, as pytest runs all doctests. A `Session` is shown by `session`."""
    assert ">>>" in getattr(polyrhythm, name).__doc__


def test_the_names_for_type_checkers_are_the_same() -> None:
    tree = ast.parse(Path(polyrhythm.__file__).read_text(encoding="utf-8"))
    stubs = [node for block in tree.body if isinstance(block, ast.If) for node in block.body]
    named = {alias.name for node in stubs if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert named == {*polyrhythm.__all__}


def test_nothing_else_shows() -> None:
    assert {name for name in dir(polyrhythm) if not name.startswith("__")} == {*polyrhythm.__all__}
    helpers = {"Any", "TYPE_CHECKING", "import_module"}
    assert not helpers & {*vars(polyrhythm)}


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(AttributeError, match="did you mean session"):
        _ = polyrhythm.sesion


def test_the_import_takes_nothing_along() -> None:
    code = "import sys, polyrhythm; sys.exit(any(name.startswith('polyrhythm.') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_looking_a_policy_up_imports_no_torch() -> None:
    code = "import sys, polyrhythm; polyrhythm.parse_policy('ssp:3'); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("place", CODE)
def test_examples_and_pages_import_public_names_only(place: str) -> None:
    assert imports(CODE[place]) <= {*PUBLIC}
