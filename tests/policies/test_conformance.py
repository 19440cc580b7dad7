"""Every built-in policy keeps every law: one row per policy and setting."""

from typing import Any

import pytest

from polyrhythm.core import Policy
from polyrhythm.policies import BUILT_IN, parse_policy
from polyrhythm.testing import conformance

ROWS = [
    "bsp",
    "asp",
    *["ssp:0", "ssp:3", "ssp:inf"],
    *["dssp:0,0", "dssp:1,4"],
    *["k-sync:1", "k-sync:3"],
    *["k-batch-sync:1", "k-batch-sync:4"],
    *["k-async:1", "k-async:3"],
    *["k-batch-async:1", "k-batch-async:4"],
    *["backup:0", "backup:2"],
    *["ringmaster:0", "ringmaster:2", "ringmaster:1,stop=true"],
    *["local:1", "local:3"],
    *["post-local:3,0", "post-local:3,0.4", "post-local:3,1"],
    *["k-group:1", "k-group:3"],
    "rlp",
    *["kbandit", "kbandit:1,every=2,values=0/2,base=(ssp:1)"],
    *["switch:bsp@0.4,asp", "switch:(k-async:3)@0.2,(ssp:1)@0.4,bsp,late=drop", "switch:(local:3)@0.4,asp"],
    *["elastic:(switch:bsp@0.6,asp),window=1,patience=1", "elastic:(local:2),window=1,patience=1"],
    *["elastic:(switch:bsp@0.6,asp),window=1,patience=1,sliding=true,back=served"],
    *["greedy:(switch:asp@0.6,bsp,late=drop),window=1,patience=1,detector=sigma"],
    *["greedy:(switch:(ssp:1)@0.4,bsp@0.4,local:2),window=1", "tuned:(ssp:1),batch=2,momentum=i/n"],
    *["auto", "auto:drop=true", "auto:risk=0,most=2", "auto:async,risk=0.5"],
    *["balanced", "balanced:2", "switch:balanced@0.5,asp", "tuned:(balanced),lr=0.5"],
    *["selsync:0.3", "selsync:0.3,aggregate=gradients", "selsync:lssr=0.7"],
    *["esync", "esync:normalised,blocking=false"],
    *["fedavg:1,0.1", "fedavg:0.5,0.3"],
    *["diloco:4", "diloco:4,overlap=2,fragments=2", "diloco:2,quorum=2", "diloco:3,quorum=1,grace=0"],
]


@pytest.mark.parametrize("policy", [parse_policy(spec) for spec in ROWS], ids=ROWS)
def test_conformance(policy: Policy[Any]) -> None:
    conformance(policy, examples=25)()


def test_every_policy_has_a_row() -> None:
    assert {parse_policy(spec).name for spec in ROWS} == set(BUILT_IN)
