"""Show a policy a few events and look at what it decides."""

from collections.abc import Callable
from typing import Any, TypeAlias

import pytest

from polyrhythm.core import Cluster, Decisions, Event, Joined, Policy

Drive: TypeAlias = Callable[..., list[Decisions]]


@pytest.fixture
def drive() -> Drive:
    """``drive(policy, n, *events)``: decisions after each event, once n workers have joined."""

    def run(policy: Policy[Any], workers: int, *events: Event) -> list[Decisions]:
        state, _ = policy.decide(policy.init(Cluster(workers)), Joined(tuple(range(workers)), 0.0))
        decided = []
        for event in events:
            state, decisions = policy.decide(state, event)
            decided.append(decisions)
        return decided

    return run
