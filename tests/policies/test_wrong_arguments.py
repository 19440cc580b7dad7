"""Arguments of every built-in policy that make no sense: one line that names the policy, the argument and the value."""

import pickle
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest

from polyrhythm.core import Policy
from polyrhythm.errors import PolicyError, SpecError
from polyrhythm.policies import (
    BSP,
    BUILT_IN,
    SSP,
    Elastic,
    LocalSGD,
    PostLocalSGD,
    Ringmaster,
    Switch,
    Tuned,
    parse_policy,
)
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


IN_PYTHON: list[tuple[Callable[[], Policy[Any]], str]] = [
    (lambda: LocalSGD(0), "policy local: h must be a whole number of at least 1 but got 0"),
    (lambda: LocalSGD("8"), "policy local: h must be a whole number but got '8'"),  # type: ignore[arg-type]
    (lambda: LocalSGD(last=True), "policy local: last must be a whole number or None but got True"),
    (lambda: PostLocalSGD(0), "policy post-local: h must be a whole number of at least 1 but got 0"),
    (lambda: SSP("3"), "policy ssp: s must be a number but got '3'"),  # type: ignore[arg-type]
    (lambda: Ringmaster(1, "no"), "policy ringmaster: stop must be True or False but got 'no'"),  # type: ignore[arg-type]
    (lambda: Elastic("bsp"), "policy elastic: policy must be a Policy but got 'bsp'"),  # type: ignore[arg-type]
    (lambda: Switch("bsp"), "policy switch: parts must be a tuple but got 'bsp'"),  # type: ignore[arg-type]
    (
        lambda: Switch((BSP(), BSP())),  # type: ignore[arg-type]
        "policy switch: parts must be Parts, as in (Part(BSP(), 0.5), Part(ASP())), but got BSP()",
    ),
    (lambda: Tuned(momentum=0.5), "policy tuned: momentum must be text but got 0.5"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("make", "line"), IN_PYTHON, ids=[line for _, line in IN_PYTHON])
def test_an_argument_in_python_is_refused_in_a_line_that_names_its_policy(
    make: Callable[[], Policy[Any]], line: str
) -> None:
    with pytest.raises(SpecError) as caught:
        make()
    assert str(caught.value) == line


def test_the_line_survives_a_process_boundary() -> None:
    with pytest.raises(SpecError) as caught:
        LocalSGD(0)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)  # noqa: S301


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
