"""A disk that is full after the first bytes of a file."""

import errno
import os
from pathlib import Path

import pytest


def cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on a file gets one byte of what is written to it as a whole."""

    def write_bytes(path: Path, data: bytes) -> int:
        with path.open("wb") as stream:
            stream.write(data[:1])
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    monkeypatch.setattr(Path, "write_text", lambda path, text, **_: write_bytes(path, text.encode()))
