"""Every built-in policy, one a file. To add one: its file, its line here, its row in the conformance test."""

from typing import Any

from polyrhythm.core import Policy, parse_spec
from polyrhythm.policies._lib.load import Catalogue
from polyrhythm.policies.asp import ASP as ASP
from polyrhythm.policies.backup import Backup as Backup
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
