"""Every built-in policy, one a file. To add one: its file, its line here, its row in the conformance test."""

from collections.abc import Iterator
from dataclasses import fields
from inspect import getfile
from typing import Any

from polyrhythm.core import Part, Policy, parse_spec
from polyrhythm.policies._lib.load import Catalogue, LoadedCatalogue
from polyrhythm.policies.asp import ASP as ASP
from polyrhythm.policies.auto.policy import Auto as Auto
from polyrhythm.policies.backup import Backup as Backup
from polyrhythm.policies.balanced import Balanced as Balanced
from polyrhythm.policies.bsp import BSP as BSP
from polyrhythm.policies.diloco import DiLoCo as DiLoCo
from polyrhythm.policies.dssp import DSSP as DSSP
from polyrhythm.policies.elastic import Elastic as Elastic
from polyrhythm.policies.esync import ESync as ESync
from polyrhythm.policies.fedavg import FedAvg as FedAvg
from polyrhythm.policies.greedy import Greedy as Greedy
from polyrhythm.policies.k_async import KAsync as KAsync
from polyrhythm.policies.k_batch_async import KBatchAsync as KBatchAsync
from polyrhythm.policies.k_batch_sync import KBatchSync as KBatchSync
from polyrhythm.policies.k_group import KGroup as KGroup
from polyrhythm.policies.k_sync import KSync as KSync
from polyrhythm.policies.kbandit import KBandit as KBandit
from polyrhythm.policies.local import LocalSGD as LocalSGD
from polyrhythm.policies.post_local import PostLocalSGD as PostLocalSGD
from polyrhythm.policies.ringmaster import Ringmaster as Ringmaster
from polyrhythm.policies.rlp.policy import RLP as RLP
from polyrhythm.policies.selsync import SelSync as SelSync
from polyrhythm.policies.ssp import SSP as SSP
from polyrhythm.policies.switch import Switch as Switch
from polyrhythm.policies.tuned import Tuned as Tuned

BUILT_IN: dict[str, type[Policy[Any]]] = {
    cls.name: cls
    for cls in globals().copy().values()
    if isinstance(cls, type) and issubclass(cls, Policy) and cls is not Policy
}
"""Policy classes by name: all that this module exports."""

KNOWN = Catalogue(BUILT_IN)
"""The built-in policies, those of installed packages, and by reference those in a user's own file or module."""


LOADED = LoadedCatalogue(BUILT_IN)
"""The same, but of files and modules only those that this process has run already."""


def parse_policy(spec: str) -> Policy[Any]:
    """The policy that a spec names, such as ``ssp:3``, ``local:h=8`` or ``./my_policy.py:Mine:k=3``.

    >>> parse_policy("ssp:3")
    SSP(s=3.0)
    >>> parse_policy("spp:3")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
        ...
    polyrhythm.errors.SpecError: unknown policy ...
    """
    return parse_spec(spec, KNOWN)


def as_policy(policy: str | Policy[Any]) -> Policy[Any]:
    """A policy as it is, or the one that a spec names.

    >>> as_policy("ssp:3") == as_policy(SSP(3))
    True
    """
    return policy if isinstance(policy, Policy) else parse_policy(policy)


def parse_loaded_policy(spec: str) -> Policy[Any]:
    """The same, but no file or module is run for it: for specs that come over a network.

    >>> parse_loaded_policy("./mine.py:Mine")
    Traceback (most recent call last):
        ...
    polyrhythm.errors.SpecError: policy './mine.py:Mine' is code that this job does not run yet; start the job with \
--allow-policy-files
    """
    return parse_spec(spec, LOADED)


def is_built_in(policy: Policy[Any]) -> bool:
    """Whether a policy and those in it come with this package, so that every process of a job has them.

    >>> is_built_in(parse_policy("switch:bsp@0.5,asp"))
    True
    """
    return all(type(each) in BUILT_IN.values() for each in all_in(policy))


def files_of(policy: Policy[Any]) -> list[str]:
    """Files that a policy and those in it come from, if they do not come with this package.

    >>> files_of(parse_policy("elastic:policy=(switch:bsp@0.5,asp)"))
    []
    """
    code = [getfile(type(each)) for each in all_in(policy) if type(each) not in BUILT_IN.values()]
    return [*code, *(each.file for each in all_in(policy) if isinstance(each, RLP) and each.file)]


def all_in(policy: Policy[Any]) -> Iterator[Policy[Any]]:
    """It, and those within it."""
    yield policy
    values = [getattr(policy, field.name) for field in fields(policy)]
    parts = [part for value in values if isinstance(value, tuple) for part in value if isinstance(part, Part)]
    for value in (*values, *(part.policy for part in parts)):
        if isinstance(value, Policy):
            yield from all_in(value)
