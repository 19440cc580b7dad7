"""Checkpoints of studies."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from polyrhythm.errors import DataError, UsageError

DATA = "--data"

WRONG = (ValueError, LookupError, TypeError, AttributeError, RuntimeError)
"""What a file raises that has other content."""

OTHER, DAMAGED = "it is no checkpoint of polyrhythm learn", "it is damaged, or of another version"
"""Why a study cannot go on from a file."""


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Its tensors, and what is known of the study.

    Raises:
        UsageError: if there is none, or none that can go on.
    """
    try:
        saved = torch.load(path, weights_only=True)
        facts = json.loads(saved["study"])
        return saved, {**facts, "flags": dict(facts["flags"]), "episodes": int(facts["episodes"])}
    except OSError as error:
        raise cannot_resume(path, error.strerror or str(error)) from error
    except (EOFError, UnpicklingError, *WRONG) as error:
        raise cannot_resume(path, OTHER) from error


def cannot_resume(path: Path, reason: str) -> UsageError:
    return UsageError(f"cannot resume from {str(path)!r}: {reason}; leave --resume out")


def check_same(path: Path, flags: Mapping[str, str], own: Mapping[str, str]) -> None:
    """A study goes on with what it has begun with."""
    for flag in {**own, **flags}:
        known, given = flags.get(flag), own.get(flag)
        if known != given:
            raise UsageError(f"{str(path)!r} was made {made(flag, known, given)}; give the same, or leave --resume out")


def made(flag: str, known: str | None, given: str | None) -> str:
    if known is None:
        return f"without {flag}"
    return f"with {flag} of other content" if flag == DATA else f"with {flag} {known}, but this is {flag} {given}"


def data_flag(folder: str) -> dict[str, str]:
    """What stands for a folder of data: a digest of what is read there, wherever it lies.

    Raises:
        DataError: if a file cannot be read.
    """
    whole = hashlib.sha256()
    try:
        for path in sorted(Path(folder).rglob("*.parquet")):
            with path.open("rb") as stream:
                digest = hashlib.file_digest(stream, "sha256").hexdigest()
            whole.update(f"{path.relative_to(folder)} {digest}\n".encode())
    except OSError as error:
        raise DataError(f"cannot read --data {folder!r}: {error.strerror}") from error
    return {DATA: whole.hexdigest()}


def check_unstarted(path: Path) -> None:
    """Have nobody write over the checkpoint of a study that is under way.

    Raises:
        UsageError: if there is one.
    """
    try:
        _, facts = read_checkpoint(path)
    except UsageError:
        return
    if facts["done"] < facts["episodes"]:
        raise UsageError(
            f"{str(path)!r} is of a study after {facts['done']} of {facts['episodes']} jobs; go on with it by "
            "--resume, remove it, or name another FILE"
        )
