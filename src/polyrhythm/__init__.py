"""Polyrhythm: choose, search, learn and switch how the workers of a data-parallel PyTorch job synchronize."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyrhythm.runtime.worker.session import Session as Session
    from polyrhythm.runtime.worker.session import session as session

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """`session` and `Session` import torch, so they are looked up when they are first used."""
    if name in ("session", "Session"):
        from polyrhythm.runtime.worker import session as module

        return getattr(module, name)
    raise AttributeError(f"module 'polyrhythm' has no attribute {name!r}")
