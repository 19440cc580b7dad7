"""One word for one thing: words that the code used to have for something else stay out of it (docs/glossary.md)."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = {
    str(path.relative_to(ROOT)): path.read_text(encoding="utf-8")
    for folder in ("src", "experiments")
    for path in sorted((ROOT / folder).rglob("*.py"))
}

GONE = {
    "hub": "coordinator",
    "hubs": "coordinators",
    "door": "acceptor",
    "doors": "acceptors",
    "shell": "driver",
    "shells": "drivers",
    "rule": "policy (or method, treatment, partition)",
    "rules": "policies (or methods, partitions)",
    "venue": "placement",
    "venues": "placements",
    "arbitrated": "placed at the coordinator",
    "replicated": "placed at every rank",
    "lockstep": "synchronous",
    "roaming": "local-step mode",
    "pushing": "parameter-server mode",
    "boards": "shared buffers",
    "mesh": "peer sockets",
    "poisoned": "collective failed",
    "station": "context",
    "stake": "contribution weight",
    "travelling": "in flight",
    "lease": "sample range",
    "leases": "sample ranges",
    "pulse": "heartbeat",
    "beats": "heartbeats",
    "office": "effects",
    "seat": "worker state",
    "seats": "worker states",
    "parcel": "transfer",
    "carriage": "transport",
    "debts": "unsynchronised samples",
    "rescue": "rollback",
    "opening": "warm-up step",
    "nursery": "fork-server context",
    "grave": "deferred destroy",
    "awake": "spinning",
    "ado": "directly",
    "sudden": "suddenly",
    "dear": "costly",
    "participant": "worker",
}
"""The word that is gone, and what stands in its place."""

ALLOWED = {
    ("src/polyrhythm/runtime/launch/run_flags.py", "pushing"),  # help text of --full-duplex: pull while pushing
    ("src/polyrhythm/runtime/script/wrapper.py", "mesh"),  # device_mesh is torch's argument
    ("src/polyrhythm/runtime/script/patches.py", "mesh"),
    ("src/polyrhythm/runtime/worker/group/link.py", "mesh"),
    ("src/polyrhythm/training/flat.py", "mesh"),
    ("src/polyrhythm/policies/_lib/load.py", "rules"),  # my_package.rules is a user's module
    ("src/polyrhythm/training/compiled.py", "rules"),  # trace_rules is a module of torch
    ("src/polyrhythm/sim/cluster/links.py", "participants"),
    ("src/polyrhythm/training/data/tasks/download.py", "hub"),  # huggingface_hub is a library
}
"""Where a word means something else."""

ONCE_SEVERAL = re.compile(r"[A-Z][a-z]+(?:[A-Z]\w*)?")


def words(text: str) -> set[str]:
    """All words of a file, names cut at underscores and capitals.

    >>> sorted(words("class HubLink: # of the rescue"))
    ['class', 'hub', 'link', 'of', 'rescue', 'the']
    """
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text)
    return {word.lower() for word in re.findall(r"[A-Za-z]+", apart)}


def types_of(text: str) -> list[str]:
    """Classes and type aliases that a module defines at its top."""
    found = []
    for node in ast.parse(text).body:
        if isinstance(node, ast.ClassDef):
            found.append(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found += [node.target.id] if "TypeAlias" in ast.unparse(node.annotation) else []
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            call = node.value.func if isinstance(node.value, ast.Call) else None
            name = node.targets[0].id
            is_variable = isinstance(call, ast.Name) and call.id == "TypeVar"
            is_alias = isinstance(node.value, ast.Subscript) and ONCE_SEVERAL.fullmatch(name) is not None
            found += [name] if is_variable or is_alias else []
    return found


@pytest.mark.parametrize("file", FILES)
def test_words_that_are_gone_stay_away(file: str) -> None:
    back = {word: GONE[word] for word in words(FILES[file]) & GONE.keys() if (file, word) not in ALLOWED}
    assert not back, f"say instead: {back}"


def test_no_type_is_defined_twice() -> None:
    places: dict[str, list[str]] = defaultdict(list)
    for file, text in FILES.items():
        for name in types_of(text):
            places[name].append(file)
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


@pytest.mark.parametrize("word", sorted({*GONE}))
def test_the_glossary_tells_those_who_look_for_an_old_word(word: str) -> None:
    if word.endswith("s") and word[:-1] in GONE:
        return
    assert re.search(rf"\b{word}\b", (ROOT / "docs/glossary.md").read_text(encoding="utf-8"))
