"""Whether huggingface.co can be reached. Its client finds that out, too, but only after half a minute of trying."""

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit
from urllib.request import getproxies

ANSWER_S = 5.0
"""How long it may take to accept a connection."""

SWITCHES = ("datasets.config", "huggingface_hub.constants")
"""Modules whose `HF_HUB_OFFLINE` says that only what was downloaded before is used."""


@contextmanager
def download_if_reached() -> Iterator[None]:
    """A block in which the client does not try to reach huggingface.co if it cannot be reached."""
    there = [] if reached() else [sys.modules[name] for name in SWITCHES if name in sys.modules]
    before = [module.__dict__.get("HF_HUB_OFFLINE", False) for module in there]
    for module in there:
        module.__dict__["HF_HUB_OFFLINE"] = True
    try:
        yield
    finally:
        for module, value in zip(there, before, strict=True):
            module.__dict__["HF_HUB_OFFLINE"] = value


def reached() -> bool:
    """Whether it accepts a connection; behind a proxy that says nothing, so that the client is to find out."""
    if getproxies():
        return True
    url = urlsplit(os.environ.get("HF_ENDPOINT") or "https://huggingface.co")
    port = url.port or (80 if url.scheme == "http" else 443)
    try:
        socket.create_connection((url.hostname or "", port), ANSWER_S).close()
    except OSError:
        return False
    return True
