"""What of a job's connections TLS covers, so that nobody believes in more."""

import os
from collections.abc import MutableMapping
from typing import Any, Final

from polyrhythm.core import Policy
from polyrhythm.core.placement import policies_of, runtime_placement
from polyrhythm.errors import PolicyError
from polyrhythm.runtime.wire.tls.files import CA, CERT, KEY, TlsFiles

UNCOVERED: Final = (
    "TLS covers the coordinator, the servers and ctl; torch's store, and what a script sends by torch.distributed, "
    "stay in the clear"
)


def covered() -> bool:
    """Whether this process is part of a job on several hosts with TLS."""
    return bool(os.environ.get(CA))


def take_up(files: TlsFiles, environment: MutableMapping[str, str], hosts: int) -> None:
    """Let the processes of this host know; on one host nothing goes over TCP."""
    for name, path in zip((CERT, KEY, CA), files, strict=True):
        if path and hosts > 1:
            environment[name] = path
        else:
            environment.pop(name, None)


def check_cover(policy: Policy[Any]) -> None:
    """Whether all that the workers exchange under a policy is covered.

    Raises:
        PolicyError: if it goes from worker to worker, over gloo or NCCL.
    """
    if covered() and any(runtime_placement(each) != "servers" for each in policies_of(policy)):
        raise PolicyError(
            f"policy {policy.spec} exchanges from worker to worker over gloo or NCCL, which TLS does not cover; "
            "use one on servers, such as asp or ssp:3, or a VPN in place of --tls-ca"
        )
