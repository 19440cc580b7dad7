"""What the pages say exists: links, pictures, commands with their options, make targets, a page for every policy."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest
from typer.testing import CliRunner

from polyrhythm.cli.app import app
from polyrhythm.cli.options import split_policies
from polyrhythm.cli.pilot import NAME as SYNC_SWITCH
from polyrhythm.cli.pilot import read_pilot
from polyrhythm.policies import BUILT_IN, parse_policy
from polyrhythm.runtime.launch.ray import read_order
from polyrhythm.runtime.launch.torchrun import read_command

ROOT = Path(__file__).parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for path in [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
}

LINK = re.compile(r"\]\(([^)\s]+)\)|src=\"([^\"]+)\"")
COMMAND = re.compile(r"^ *(?:\$ )?(?:\.venv/bin/)?polyrhythm (?!coordinator: )((?:.*\\\n)*.*)$", re.MULTILINE)
FILE = re.compile(r"(?<![\w/.-])((?:src|tests|docs|benchmarks|examples|experiments)/[\w/.-]*\w\.(?:py|md|toml|sh))\b")
TARGET = re.compile(r"(?:`|^    )(?:\w+=\S+ )*make (?:\w+=\S+ )*([a-z][a-z-]*)", re.MULTILINE)


def links(text: str) -> list[str]:
    """Targets of links and pictures that stand in this repository, without their anchors."""
    targets = [inline or html for inline, html in LINK.findall(text)]
    return [target.partition("#")[0] for target in targets if not target.startswith(("http", "#", "mailto:"))]


def commands(text: str) -> list[list[str]]:
    """Arguments of every call of polyrhythm that has lines of its own."""
    return [shlex.split(call.replace("\\\n", " "), comments=True) for call in COMMAND.findall(text)]


def specs(arguments: list[str]) -> list[str]:
    """Policies that a call names."""
    pairs = list(pairwise(arguments))
    listed = [spec for option, value in pairs if option == "--policies" for spec in split_policies(value)]
    single = [value for option, value in pairs if option == "--policy"]
    return listed + [value for value in single if value != SYNC_SWITCH and "{}" not in value]


def test_what_is_looked_for_is_found() -> None:
    text = '[a](b.md#c) ![d](e.svg) <img src="f.png"> [g](https://h.example)'
    assert links(text) == ["b.md", "e.svg", "f.png"]
    text = "Prose on polyrhythm.\n\n    polyrhythm compare uniform \\\n        --policies bsp,local:h=8,asp  # both\n"
    text += "\n    polyrhythm coordinator: phase 1\n"  # which it says
    assert commands(text) == [["compare", "uniform", "--policies", "bsp,local:h=8,asp"]]
    assert specs(commands(text)[0]) == ["bsp", "local:h=8", "asp"]


@pytest.mark.parametrize("page", PAGES)
def test_links_and_pictures_exist(page: str) -> None:
    folder = (ROOT / page).parent
    assert [link for link in links(PAGES[page]) if not (folder / link).exists()] == []


@pytest.mark.parametrize("page", PAGES)
def test_files_that_are_named_exist(page: str) -> None:
    assert [name for name in FILE.findall(PAGES[page]) if not (ROOT / name).exists()] == []


def test_the_way_of_a_push_goes_through_files_that_there_are() -> None:
    page = PAGES["docs/design.md"].partition("## The way of a push")[2].partition("## Search")[0]
    named = set(re.findall(r"`([\w/]+\.py)`", page)) - {"benchmarks/trips.py"}
    assert [name for name in sorted(named) if not [*(ROOT / "src").rglob(name)]] == []


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if commands(text)])
def test_commands_and_options_exist(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRHYTHM_TOKEN", "secret")
    monkeypatch.setattr("socket.gethostbyname", lambda host: "127.0.0.1")  # hosts of the pages exist nowhere
    for command, *arguments in commands(PAGES[page]):
        if command == "run":  # what stands after the script is the script's, --help too
            pilot = read_pilot(arguments)
            call = pilot.command("bsp") if pilot else arguments
            order = read_order(call)
            assert read_command(order.arguments(0, "host:29400") if order else call).processes
            continue
        if command == "doctor" and "--" in arguments:  # what follows is somebody else's command
            arguments = arguments[: arguments.index("--")]
        outcome = CliRunner().invoke(app, [command, *arguments, "--help"])
        assert outcome.exit_code == 0, f"polyrhythm {command} {shlex.join(arguments)}: {outcome.output}"


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if any(map(specs, commands(text)))])
def test_policies_in_commands_exist(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    for arguments in commands(PAGES[page]):
        for spec in specs(arguments):
            assert parse_policy(spec).name


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z][a-z-]*):", makefile, re.MULTILINE))
    named = {target for text in PAGES.values() for target in TARGET.findall(text)}
    assert {"demo", "test"} <= named <= targets


@pytest.mark.parametrize("policy", BUILT_IN)
def test_every_policy_has_a_page_in_the_overview(policy: str) -> None:
    assert f"docs/policies/{policy}.md" in PAGES
    assert f"{policy}.md" in links(PAGES["docs/policies/index.md"])
