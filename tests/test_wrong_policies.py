"""What is refused in one driver is refused in all, with the same words."""

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from polyrhythm.core import Proceed, replay
from polyrhythm.errors import PolicyError
from polyrhythm.policies import BSP, parse_policy
from polyrhythm.sim import Device, Scenario, TimingWorkload, simulate
from polyrhythm.testing import ClusterScript, ConformanceError, ScriptPlayer, check
from tests import wrong_policies
from tests.runtime.fake_job import FakeJob
from tests.sim.clusters import cluster

AT_START = ("StartsBadly", "ExitsAtStart")
REFUSED = {
    "Raises": "raised ValueError('oops') at Report of worker 1 with clock 1",
    "Exits": "raised SystemExit(0) at Report of worker 1 with clock 1",
    "RaisesByTheClock": "raised ValueError('oops') at Report of worker 1 with clock 1",
    "StartsBadly": "raised ValueError('oops') in init",
    "ExitsAtStart": "raised SystemExit(0) in init",
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
    "SharesUndeclared": "needs Traits(shares=True)",
    "SharesTooMuch": "Proceed.shares (3,) are 3 samples but 1 workers with mini-batches of ",
    "SharesNothing": "Proceed.shares must be a whole number of at least 1 for each of its workers but got (0,)",
    "SharesForOthers": "Proceed.shares must be a whole number of at least 1 for each of its workers but got (1, 1)",
    "CancelsUndeclared": "needs Traits(cancels=True)",
    "StopsWhoWaits": "needs Traits(waits=False): workers that wait for answers need no word to stop",
    "WakesInThePast": "Wake asks for an alarm at -1 s, but it is",
    "WakesAtNoTime": "Wake asks for an alarm at nan s",
    "NeverWakes": "Wake asks for an alarm at inf s",
    "MeasuresUndeclared": "needs 'probe_loss' in Traits(needs=...)",
    "WakesByTheClock": "needs Traits(placement='coordinator'): ranks that decide by themselves share no clock",
}


def spec_of(name: str) -> str:
    return f"{wrong_policies.__name__}:{name}"


def notice_of(job: FakeJob, first: str, name: str, samples: int) -> str:
    """What is said of a switch to a wrong policy, after which the first one has gone on and lost no sample."""
    job.run({25: f"switch {spec_of(name)}"})
    assert set(job.applied.values()) == {1}
    assert sum(job.applied.values()) == job.coordinator.job.samples == samples
    (notice,) = job.coordinator.choice.notices
    assert job.coordinator.policy.spec == first
    return notice


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
    assert name in AT_START or "Report of worker 1 with clock 1" in message
    assert message_of(coordinated, name) == message
    assert message_of(staged, name) == message


@pytest.mark.parametrize(("method", "name"), [("decisions", "Exits"), ("init", "ExitsAtStart")])
def test_an_interrupt_is_the_policys_where_ctrl_c_does_not_reach(
    method: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a coordinator; it ended with a traceback."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(getattr(wrong_policies, name), method, interrupt)
    with pytest.raises(KeyboardInterrupt):
        coordinated(spec_of(name))
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        message = message_of(coordinated, name)
    finally:
        signal.signal(signal.SIGINT, before)
    assert message.startswith(f"policy {parse_policy(spec_of(name)).spec} raised KeyboardInterrupt() ")


class NoException(BaseException):
    """As asyncio's CancelledError is, and what a library in Rust panics with."""


@pytest.mark.parametrize("run", [simulated, coordinated, staged])
@pytest.mark.parametrize(
    ("method", "name", "when"),
    [("decisions", "Exits", "at Report of worker 1 with clock 1"), ("init", "ExitsAtStart", "in init")],
)
def test_what_is_no_exception_is_told_as_one(
    method: str, name: str, when: str, run: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise NoException

    monkeypatch.setattr(getattr(wrong_policies, name), method, fail)
    assert f" raised NoException() {when} (" in message_of(run, name)


@pytest.mark.parametrize("error", [ValueError("oops"), SystemExit(0), NoException()])
def test_a_remark_that_fails_is_told(error: BaseException, tmp_path: Path) -> None:
    class Remarks(BSP):
        def remark(self, state: object) -> str:
            raise error

    with pytest.raises(PolicyError, match=r"raised .* in remark at Joined of workers 0, 1 \(test_wrong"):
        simulate(cluster(1.0, 2.0, samples=40), Remarks(), trace=tmp_path / "trace.jsonl")


@pytest.mark.parametrize("name", ["RaisesOnManyLines", "SaysManyLines", "ReturnsManyLines"])
def test_what_a_policy_gives_is_said_on_one_short_line(name: str) -> None:
    message = message_of(simulated, name)
    assert "[1, 2]..." in message
    assert "\n" not in message
    assert len(message) < 600


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("Raises", 'raise ValueError("oops")'),
        ("StartsBadly", 'raise ValueError("oops")'),
        ("RaisesElsewhere", "loads("),
    ],
)
def test_the_line_of_the_policy_that_raises_is_named(name: str, line: str) -> None:
    """Its own, not that of the library that it has called."""
    file, _, number = message_of(simulated, name).rpartition("(")[2].removesuffix(")").partition(":")
    assert file == "wrong_policies.py"
    assert line in Path(wrong_policies.__file__).read_text().splitlines()[int(number) - 1]


@pytest.mark.parametrize(("name", "shown"), [("ShowsNoFigures", "3"), ("ShowsText", "{'threshold': 'high'}")])
def test_figures_are_numbers_by_name(name: str, shown: str) -> None:
    message = rf"ShowsNoFigures|ShowsText.* figures must be numbers by name, .* but are {re.escape(shown)}"
    with pytest.raises(PolicyError, match=message):
        simulated(spec_of(name))


def test_figures_may_be_of_numpy() -> None:
    result = simulate(cluster(1.0, 2.0, samples=40), parse_policy(spec_of("ShowsNumpy")))
    assert result.policy_figures == {"threshold": 0.5}


STUCK = {
    "StartsNobody": "is deadlocked at TIME: workers 0, 1 wait, none runs, and 40 samples are left; release somebody",
    "ForgetsToGoOn": "is deadlocked at TIME: workers 0, 1 wait, none runs, and 38 samples are left; release somebody",
}


def stuck(run: Callable[[str], None], name: str) -> str:
    with pytest.raises(PolicyError) as refused:
        run(spec_of(name))
    return re.sub(r"at \S+ s:", "at TIME:", str(refused.value))


@pytest.mark.parametrize(("name", "words"), STUCK.items(), ids=STUCK)
def test_a_policy_under_which_all_wait_is_refused_with_the_same_words(name: str, words: str) -> None:
    message = stuck(simulated, name)
    assert words in message
    assert stuck(coordinated, name) == message


@pytest.mark.parametrize("samples", [41, 43])
def test_a_barrier_that_never_opens_at_the_end_of_an_epoch_is_refused(samples: int) -> None:
    """The last that is missing finds no mini-batch and leaves, and the others would wait for ever."""
    scenario = Scenario(devices=[Device(count=3)], workload=TimingWorkload(batch_size=1, samples=samples))
    with pytest.raises(PolicyError, match=r"ForgetsWhoHasLeft is deadlocked at .* none runs, and 0 samples are left"):
        simulate(scenario, spec_of("ForgetsWhoHasLeft"))
    with pytest.raises(PolicyError, match=r"ForgetsWhoHasLeft is deadlocked at .* none runs, and 0 samples are left"):
        FakeJob(spec_of("ForgetsWhoHasLeft"), 3, samples, 1, 2, seed=0).run({})


@pytest.mark.parametrize("seed", range(5))
def test_a_death_after_which_all_wait_is_refused(seed: int) -> None:
    with pytest.raises(PolicyError, match=r"ForgetsWhoHasLeft is deadlocked at .* none runs, and \d+ samples are left"):
        FakeJob(spec_of("ForgetsWhoHasLeft"), 3, 120, 1, 2, seed).run({40: "kill 1"})


@pytest.mark.parametrize("first", ["bsp", "asp", "local:3"])
@pytest.mark.parametrize("name", [*STUCK, "ForgetsWhoHasLeft", "ForgetsByTheClock", "ForgetsOneByTheClock"])
def test_after_a_switch_to_a_policy_under_which_all_wait_the_one_before_goes_on(name: str, first: str) -> None:
    for seed in range(5):
        notice = notice_of(FakeJob(first, 3, 80, 2, 2, seed), first, name, samples=160)
        assert ("lets worker " if "ByTheClock" in name else "is deadlocked at ") in notice


def test_who_waits_as_the_next_part_of_a_sequence_is_due_is_not_stuck() -> None:
    job = FakeJob(f"switch:({spec_of('MakesItsShare')})@0.25,asp", 2, 40, 1, 1, seed=0)
    job.run({})
    assert (job.coordinator.job.samples, job.coordinator.phase) == (40, 2)


@pytest.mark.parametrize("seed", range(5))
def test_who_waits_for_a_worker_that_is_connected_and_not_ready_is_not_stuck(seed: int) -> None:
    job = FakeJob(spec_of("NeverAlone"), 2, 80, 1, 1, seed)
    job.coordinator.job.connect(2)
    with pytest.raises(AssertionError, match="deadlock at tick"):
        job.run({40: "kill 0"})


@pytest.mark.parametrize("seed", range(5))
def test_who_waits_for_an_alarm_is_not_stuck(seed: int) -> None:
    job = FakeJob(spec_of("WakesOnce"), 2, 40, 1, 1, seed)
    with pytest.raises(PolicyError, match="is deadlocked"):
        job.run({})
    assert not job.alarms


@pytest.mark.parametrize(("name", "worker"), [("ForgetsByTheClock", 0), ("ForgetsOneByTheClock", 1)])
def test_under_a_policy_of_clocks_nobody_may_wait_on_ranks_that_decide_by_themselves(name: str, worker: int) -> None:
    with pytest.raises(PolicyError, match=rf"lets worker {worker} wait after 2 steps of the epoch; let it Proceed: in"):
        coordinated(spec_of(name))
    with pytest.raises(PolicyError, match="is deadlocked at"):
        simulated(spec_of("ForgetsByTheClock"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NeverAnswers", "goes on without an answer, and no Proceed names it"),
        ("StopsAStranger", "Stop names worker 7, which is not live"),
        ("StopsTwice", "Stop names worker 1, which is not running; let it Proceed first"),
    ],
)
def test_a_wrong_policy_whose_workers_do_not_wait_is_refused(name: str, words: str) -> None:
    message = message_of(simulated, name)
    assert words in message
    assert message_of(staged, name) == message
    assert message_of(coordinated, name) == message


@pytest.mark.parametrize("first", ["bsp", "asp", "local:3"])
@pytest.mark.parametrize(("name", "words"), REFUSED.items(), ids=REFUSED)
def test_after_a_switch_to_a_wrong_policy_the_one_before_goes_on(name: str, words: str, first: str) -> None:
    for seed in range(5):
        job = FakeJob(first, 3, 80, 2, 1, seed)
        notice = notice_of(job, first, name, samples=80)
        assert words.partition(" with clock")[0] in notice
        assert notice.startswith("the switch to" if name in AT_START else "policy ")
        for trace in job.traced() if name != "WakesAtNoTime" else ():  # whose nan is no other's
            list(replay(parse_policy(trace.header.policy), trace))


def test_what_goes_on_is_what_has_run() -> None:
    """Of three policies the second never began; of the third what is wrong is said once."""
    job = FakeJob("asp", 2, 80, 2, 1, seed=1)
    job.run({25: "switch bsp", 26: f"switch {spec_of('Raises')}"})
    wrong = parse_policy(spec_of("Raises")).spec
    assert [policy.spec for policy, _, _ in job.traces] == ["asp", wrong, "asp"]
    (notice,) = job.coordinator.choice.notices
    assert notice.endswith(f"{wrong} is out of force, and asp goes on")


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
