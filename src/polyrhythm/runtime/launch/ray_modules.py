"""Ray's modules, which only ``--on ray`` needs."""

from importlib import import_module
from typing import Any

from polyrhythm.errors import UsageError


def ray_part(name: str) -> Any:
    """The module of this name."""
    try:
        return import_module(name)
    except ImportError:
        raise UsageError("--on ray needs Ray; install it with: pip install 'polyrhythm[ray]'") from None
