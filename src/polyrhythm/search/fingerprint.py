"""What makes two jobs the same: a digest of all that their accuracy and time depend on."""

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from polyrhythm.errors import DataError
from polyrhythm.policies import files_of, parse_policy


def fingerprint(parts: Mapping[str, Any]) -> str:
    """A digest of named parts, each a plain value; equal parts have equal digests whatever their order.

    >>> fingerprint({"lr": 0.1, "workers": 8}) == fingerprint({"workers": 8, "lr": 0.1})
    True
    """
    text = msgspec.json.encode(msgspec.to_builtins(dict(parts), str_keys=True), order="deterministic")
    return hashlib.sha256(text).hexdigest()[:16]


def code_of(*specs: str) -> dict[str, list[str]]:
    """What these policies add to the parts of a job: the contents of files that they come from; built-in ones nothing.

    >>> code_of("ssp:3", "bsp")
    {}
    """
    files = [file for spec in specs for file in files_of(parse_policy(spec))]
    return {"code": [*map(file_digest, map(Path, files))]} if files else {}


def digest_of(paths: Iterable[str | Path]) -> dict[str, str]:
    """Digests of the contents of files and, by their names inside, of all files in folders."""
    digests: dict[str, str] = {}
    for path in map(Path, paths):
        files = sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
        for file in files:
            name = str(file.relative_to(path)) if path.is_dir() else file.name
            digests[f"{path.name}/{name}"] = file_digest(file)
    return digests


def file_digest(path: Path) -> str:
    try:
        with open(path, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise DataError(f"cannot read {str(path)!r}: {error.strerror}") from error
