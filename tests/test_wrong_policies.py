"""What is refused in one driver is refused in all, with the same words."""

import re
from collections.abc import Callable

import pytest

from polyrhythm.core import Proceed
from polyrhythm.errors import PolicyError
from polyrhythm.policies import parse_policy
from polyrhythm.sim import simulate
from polyrhythm.testing import ClusterScript, ConformanceError, ScriptPlayer, check
from tests import wrong_policies
from tests.runtime.fake_job import FakeJob
from tests.sim.clusters import cluster

REFUSED = {
    "Raises": "raised ValueError('oops') at Report of worker 1 with clock 1",
    "RaisesByTheClock": "raised ValueError('oops') at Report of worker 1 with clock 1",
    "StartsBadly": "raised ValueError('oops') in init",
    "ReturnsNothing": "decide must return a state and decisions but returned None",
    "ReturnsOnlyDecisions": "decide must return a state and decisions but returned [",
    "ReturnsAList": "which is not a tuple of decisions",
    "SaysGo": "decide returned 'go', which is not a decision",
    "SyncsNothing": "Sync names no workers; leave the decision out instead",
    "SyncsTwice": "Sync names worker 1, which has no gradient pending",
    "WeighsNothing": "weights [0.0] sum to 0.0; a Sync needs a positive, finite sum",
    "AveragesUndeclared": "needs 'replicas' in Traits(exchanges=...)",
    "ForgetsTheComma": "Proceed.workers must be a tuple of workers but got 1; write (1,) for one",
    "RestartsTwice": "Proceed names worker 1, which is still running",
    "StartsAStranger": "Proceed names worker 7, which is not live",
    "StartsNobodysKind": "Proceed.exchange must be gradients or replicas but got 'gradient'",
    "SetsABatchOfNothing": "Settings.batch_size must be a whole number of at least 1 but got 0",
    "CancelsUndeclared": "needs Traits(cancels=True)",
    "WakesInThePast": "Wake asks for an alarm at -1 s, but it is",
    "WakesAtNoTime": "Wake asks for an alarm at nan s",
    "NeverWakes": "Wake asks for an alarm at inf s",
    "WakesByTheClock": "needs Traits(placement='coordinator'): ranks that decide by themselves share no clock",
}


def spec_of(name: str) -> str:
    return f"{wrong_policies.__name__}:{name}"


def simulated(spec: str) -> None:
    simulate(cluster(1.0, 2.0, samples=40), parse_policy(spec))


def coordinated(spec: str) -> None:
    FakeJob(spec, 2, 40, 1, 1, seed=0).run({})


def staged(spec: str) -> None:
    ScriptPlayer(parse_policy(spec), ClusterScript(workers=2, total_samples=40)).play()


def message_of(run: Callable[[str], None], name: str) -> str:
    """The whole message, but for the time that it is."""
    with pytest.raises(PolicyError) as refused:
        run(spec_of(name))
    assert refused.value.__cause__ is not None
    return re.sub(r"it is \S+ s;", "it is TIME;", str(refused.value))


@pytest.mark.parametrize(("name", "words"), REFUSED.items(), ids=REFUSED)
def test_a_wrong_policy_is_refused_with_the_same_words_everywhere(name: str, words: str) -> None:
    message = message_of(simulated, name)
    assert message.startswith(f"policy {parse_policy(spec_of(name)).spec} ")
    assert words in message
    assert name == "StartsBadly" or "Report of worker 1 with clock 1" in message
    assert message_of(coordinated, name) == message
    assert message_of(staged, name) == message


@pytest.mark.parametrize("run", [simulated, coordinated, staged])
def test_an_alarm_may_be_for_now_and_its_exception_is_named(run: Callable[[str], None]) -> None:
    assert "raised ValueError('woken') at Alarm of " in message_of(run, "RaisesOnAlarm")


@pytest.mark.parametrize("name", ["ReturnsNothing", "SaysGo", "SyncsNothing", "StartsAStranger"])
def test_the_kit_calls_it_a_breach_of_contract(name: str) -> None:
    with pytest.raises(ConformanceError, match="breaks the law 'contract': ") as failure:
        check(parse_policy(spec_of(name)), ClusterScript(workers=2))
    assert REFUSED[name] in str(failure.value)


def test_to_start_nobody_is_no_mistake() -> None:
    """Unlike an update from nobody, it has a meaning: a policy may well find that nobody is to go on."""

    class Nobody(wrong_policies.Wrong):
        def answer(self, state: object, event: object) -> object:
            decided = super(wrong_policies.Wrong, self).decide(state, event)  # type: ignore[arg-type]
            return decided[0], (Proceed(()), *decided[1])

    assert simulate(cluster(1.0, 2.0, samples=6), Nobody()).samples == 6
    assert check(Nobody(), ClusterScript(workers=2)).left == ()
