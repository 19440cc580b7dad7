"""What is installed: every dependency has a tested version, and it lies in the range that users may have."""

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
CONSTRAINTS = {
    canonicalize_name(requirement.name): requirement
    for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    for requirement in [Requirement(line)]
}


def requirements() -> list[str]:
    """Everything that pyproject.toml names."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    project, groups = settings["project"], settings["dependency-groups"]
    lists = [project["dependencies"], *project["optional-dependencies"].values(), *groups.values()]
    return [requirement for names in lists for requirement in names if requirement != "polyrhythm-experiments"]


@pytest.mark.parametrize("text", requirements())
def test_every_dependency_has_a_tested_version_in_its_range(text: str) -> None:
    wanted = Requirement(text)
    name = canonicalize_name(wanted.name)
    assert name in CONSTRAINTS, f"{name} is not in constraints.txt; run make constraints"
    (pin,) = CONSTRAINTS[name].specifier
    assert pin.operator == "=="
    assert wanted.specifier.contains(pin.version)


def test_the_tested_versions_come_from_public_releases() -> None:
    assert [str(line) for line in CONSTRAINTS.values() if line.url or "+" in str(line)] == []


def test_scripts_that_tests_start_are_not_imported_to_collect_them() -> None:
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    folders = {str(folder.relative_to(ROOT)) for folder in (ROOT / "tests").rglob("scripts")}
    assert folders <= set(options["norecursedirs"])
