"""Specs that begin like what somebody types."""

from dataclasses import MISSING, fields

from polyrhythm.errors import SpecError
from polyrhythm.policies import BUILT_IN, parse_policy
from polyrhythm.policies._lib.completion import MOST, completions

LACKING = [cls for cls in BUILT_IN.values() if any(field.default is MISSING for field in fields(cls))]
"""Classes with a parameter that must be given; another one alone is not enough."""


def test_whatever_is_proposed_can_be_read_or_lacks_a_value() -> None:
    proposed = [*completions("", BUILT_IN), *(spec for name in BUILT_IN for spec in completions(f"{name}:", BUILT_IN))]
    assert len(proposed) > len(BUILT_IN)
    for spec in proposed:
        try:
            parse_policy(spec)
        except SpecError:
            assert spec.endswith("=") or "=," in spec or BUILT_IN[spec.partition(":")[0]] in LACKING


def test_what_is_given_is_kept_and_not_proposed_again() -> None:
    assert completions("diloco:h=8,l", BUILT_IN) == ["diloco:h=8,lr=0.7"]
    assert "dssp:s_low=2,s_low=3" not in completions("dssp:s_low=2,", BUILT_IN)


def test_nothing_is_proposed_for_what_nobody_knows() -> None:
    assert completions("no-such:", BUILT_IN) == []
    assert completions("<img>", BUILT_IN) == []
    assert len(completions("", BUILT_IN)) <= MOST
