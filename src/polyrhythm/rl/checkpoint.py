"""Checkpoints of studies."""

import json
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from polyrhythm.errors import UsageError

WRONG = (ValueError, LookupError, TypeError, AttributeError, RuntimeError)
"""What a file raises that has other content."""


def read_checkpoint(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Its tensors, and what is known of the study.

    Raises:
        UsageError: if there is none, or none that can go on.
    """
    try:
        saved = torch.load(path, weights_only=True)
        facts = json.loads(saved["study"])
        return saved, {**facts, "flags": dict(facts["flags"]), "episodes": int(facts["episodes"])}
    except (OSError, EOFError, UnpicklingError, *WRONG) as error:
        raise cannot_resume(path, error) from error


def cannot_resume(path: Path, error: Exception) -> UsageError:
    reason = str(error).partition("\n")[0]
    return UsageError(f"cannot resume from {str(path)!r}: {reason}; leave --resume out")


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
