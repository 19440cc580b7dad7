"""A supervisor that breaks its contract is refused in the same words wherever it is asked."""

from types import SimpleNamespace
from typing import Any

import pytest

from polyrhythm.core import Cluster, Policy
from polyrhythm.core.placement import runtime_placement
from polyrhythm.errors import PolicyError
from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.coordinator.stages import Stages, begun
from polyrhythm.sim.trial import follow_switch
from tests.runtime.fake_job import FakeJob
from tests.trying import Trying, TryingState


class Wrong(Trying):
    """Raises in the method of this name once it is asked."""

    wrong = ""

    def init(self, cluster: Cluster) -> Any:
        return self._unless("init", super().init(cluster))

    def wanted(self, state: TryingState) -> Any:
        return self._unless("wanted", super().wanted(state))

    def keeps(self, state: TryingState) -> Any:
        return self._unless("keeps", False)

    def goes_back(self, state: TryingState) -> Any:
        return self._unless("goes_back", True)

    def _unless(self, name: str, answer: Any) -> Any:
        if name == self.wrong:
            raise ValueError("oops")
        return answer


class WantsNothing(Trying):
    def wanted(self, state: TryingState) -> Any:
        return "asp"


def wrong_in(name: str) -> Any:
    return type("Wrong", (Wrong,), {"wrong": name, "__module__": __name__})()


def simulated(policy: Policy[Any]) -> None:
    engine: Any = SimpleNamespace(policy=policy, driver=SimpleNamespace(state=TryingState()), trial=object())
    follow_switch(engine)


def coordinated(policy: Policy[Any], name: str) -> None:
    stages = Stages(Trying(), epochs=1)
    stages.policy, stages.known = policy, TryingState()
    getattr(stages, name)


def said(ask: Any, *given: Any) -> str:
    with pytest.raises(PolicyError) as error:
        ask(*given)
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize("name", ["keeps", "goes_back"])
def test_a_trial_is_refused_on_simulated_workers_as_on_real_ones(name: str) -> None:
    policy = wrong_in(name)
    line = said(simulated, policy)
    assert line == said(coordinated, policy, name)
    assert f"in {name}" in line
    assert "oops" in line


@pytest.mark.parametrize(
    ("policy", "part"),
    [(wrong_in("init"), "in init"), (wrong_in("wanted"), "in wanted"), (WantsNothing(), "must return a policy")],
)
def test_so_it_is_where_its_placement_is_found(policy: Policy[Any], part: str) -> None:
    job = Job(2, FakeJob("bsp", 2, 60, 2, 1, seed=0), lambda: 0.0)
    line = said(runtime_placement, policy)
    assert line == said(begun, policy, Cluster(2), job)
    assert part in line
