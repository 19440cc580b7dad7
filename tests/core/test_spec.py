from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.core import Cluster, Decisions, Event, Policy, parse_spec
from polyrhythm.errors import SpecError
from polyrhythm.policies import (
    ASP,
    BSP,
    DSSP,
    SSP,
    Backup,
    KAsync,
    KBatchAsync,
    KBatchSync,
    KGroup,
    KSync,
    LocalSGD,
    PostLocalSGD,
    parse_policy,
)

counts = st.integers(1, 10**6)
POLICIES: st.SearchStrategy[Policy[Any]] = st.one_of(
    st.builds(BSP),
    st.builds(ASP),
    st.builds(SSP, st.integers(0, 10**9).map(float) | st.just(float("inf"))),
    st.builds(lambda low, more: DSSP(low, low + more), counts, counts),
    *[st.builds(cls, counts) for cls in (Backup, KAsync, KBatchAsync, KBatchSync, KGroup, KSync, LocalSGD)],
    st.builds(PostLocalSGD, counts, st.floats(0, 1)),
)


@dataclass(frozen=True)
class Wrapper(Policy[None]):
    """One field of each kind that a spec can write."""

    inner: Policy[Any]
    label: str = "x"
    on: bool = False
    share: float = 0.5

    name: ClassVar[str] = "wrapper"
    summary: ClassVar[str] = "wraps"

    def init(self, cluster: Cluster) -> None:
        return None

    def decide(self, state: None, event: Event) -> tuple[None, Decisions]:
        return None, ()


REGISTRY: dict[str, type[Policy[Any]]] = {
    "wrapper": Wrapper,
    "bsp": BSP,
    "ssp": SSP,
    "local": LocalSGD,
    "./my.py:Mine": BSP,
}


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(policy=POLICIES)
def test_spec_names_the_policy(policy: Policy[Any]) -> None:
    assert parse_policy(policy.spec) == policy


@pytest.mark.parametrize(
    ("spec", "canonical"),
    [
        ("ssp", "ssp:3"),
        (" ssp:s = 3.0 ", "ssp:3"),
        ("ssp:inf", "ssp:inf"),
        ("((ssp:1))", "ssp:1"),
        ("dssp:2", "dssp:2"),
        ("dssp:s_low=2,4", "dssp:2,s_high=4"),
        ("dssp:2,s_high=4", "dssp:2,s_high=4"),
        ("post-local:at=0.25", "post-local:8,at=0.25"),
        ("rlp:only=h", "rlp:only=h"),
        ("rlp:,only=h", "rlp:only=h"),
        ("balanced:known=0.1/0.2", "balanced:known=0.1/0.2"),
    ],
)
def test_canonical_spec(spec: str, canonical: str) -> None:
    assert parse_policy(spec).spec == canonical


@pytest.mark.parametrize(
    "policy",
    [Wrapper(BSP()), Wrapper(SSP(2), "y", True, 1e-9), Wrapper(Wrapper(LocalSGD(3), on=True), share=2.0)],
)
def test_nested_policies(policy: Wrapper) -> None:
    assert parse_spec(policy.spec, REGISTRY) == policy


def test_reference_as_a_name() -> None:
    assert parse_spec("./my.py:Mine", REGISTRY) == BSP()
    assert parse_spec("wrapper:(./my.py:Mine),on=true", REGISTRY) == Wrapper(BSP(), on=True)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("", "unknown policy '': known: "),
        ("sp:3", r"unknown policy 'sp': did you mean ssp\?"),
        ("ssp:", "ends in a colon; write 'ssp'"),
        ("ssp:x", "s must be a number but got 'x'"),
        ("ssp:-1", "s must be a whole number of at least 0, or inf, but got -1"),
        ("ssp:nan", "s must be a whole number of at least 0, or inf, but got nan"),
        ("ssp:1,2", "has too many values; it takes at most 1: s"),
        ("bsp:1", "has too many values; it takes none"),
        ("ssp:t=1", "has no parameter 't': known: s"),
        ("ssp:s=1,s=2", "gives 's' twice"),
        ("local:1.5", "h must be a whole number but got '1.5'"),
        ("wrapper", "needs inner, as in 'wrapper:inner=...'"),
        ("wrapper:label=x,yes", "has a value without a name after one with a name"),
        ("wrapper:bsp,x,maybe", "on must be true or false but got 'maybe'"),
        ("wrapper:(bsp", "has unbalanced parentheses"),
        ("wrapper:bsp)", "has unbalanced parentheses"),
        ("wrapper:(nope:1)", r"^inner of policy 'wrapper:\(nope:1\)': unknown policy 'nope'"),
        ("wrapper:(local:0)", "^policy '.local:0.': h must be a whole number of at least 1 but got 0$"),
        ("ssp:-1", "^policy 'ssp:-1': s must be"),
    ],
)
def test_one_clear_line(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as error:
        parse_spec(spec, REGISTRY)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [None, 3, BSP(), BSP])
def test_a_spec_is_a_text(value: Any) -> None:
    with pytest.raises(SpecError, match="a policy is a spec, such as 'ssp:3', or a Policy, but got "):
        parse_policy(value)


def test_errors_of_a_policy_get_its_spec() -> None:
    @dataclass(frozen=True)
    class Strict(Wrapper):
        def __post_init__(self) -> None:
            raise ValueError("label must be short")

    with pytest.raises(SpecError, match=r"policy 'strict:bsp': label must be short"):
        parse_spec("strict:bsp", {**REGISTRY, "strict": Strict})
