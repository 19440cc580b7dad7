"""Arguments of every built-in policy that make no sense: one line that names the policy, the argument and the value."""

from dataclasses import fields
from typing import Any

import pytest

from polyrhythm.core import Policy
from polyrhythm.errors import PolicyError, SpecError
from polyrhythm.policies import BUILT_IN, parse_policy
from polyrhythm.sim import simulate
from tests.sim.clusters import cluster

WRONG = [
    ("local:0", "h must be a whole number of at least 1 but got 0"),
    ("greedy:floor=nan", "floor must be above 0 but got nan"),
    ("auto:allow=x", "allow must be one of exact, local, async but got 'x'"),
    *(
        (f"balanced:account={text}", "account must be two or three numbers with / between them but got '.*'")
        for text in ("nan/nan", "1/inf", "1", "1/2/3/4", "x/y")
    ),
]
"""Specs that are refused, and how."""


@pytest.mark.parametrize(("spec", "line"), WRONG)
def test_a_refused_argument_is_named_with_its_policy(spec: str, line: str) -> None:
    with pytest.raises(SpecError, match=f"^policy '{spec}': {line}$"):
        parse_policy(spec)


ODD = ("nan", "inf", "-inf", "-1", "0", "1e400", "", "0.5", "x", "1", "9" * 5000, "nan/nan", "bsp", "spp", "1,{}=1")
FIELDS = [(name, field.name) for name, kind in BUILT_IN.items() for field in fields(kind) if name != "switch"]


def parsed(spec: str) -> tuple[Policy[Any] | None, str]:
    """The policy, or the line that refuses it."""
    try:
        return parse_policy(spec), ""
    except SpecError as error:
        return None, str(error)


@pytest.mark.parametrize(("name", "field"), FIELDS)
def test_an_odd_argument_makes_sense_or_is_refused_by_its_name(name: str, field: str) -> None:
    for value in ODD:
        spec = f"{name}:{field}={value.format(field)}"
        policy, refusal = parsed(spec)
        assert refusal or policy
        assert not refusal or f"policy {spec!r}" in refusal
        assert policy is None or parse_policy(policy.spec) == policy


def test_a_policy_that_refuses_a_job_says_it_in_its_own_words() -> None:
    with pytest.raises(
        PolicyError, match=r"^policy selsync:0.3 decides from the norms of gradients, .*; train something"
    ):
        simulate(cluster(1.0), "selsync:0.3")
