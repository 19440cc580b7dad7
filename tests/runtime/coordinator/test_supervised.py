"""A policy that puts others in force, on a job in memory: each runs in a phase of its own, and says why."""

from collections import Counter
from dataclasses import replace

import msgspec
import pytest

from polyrhythm.core import Proceed
from polyrhythm.core.policy_state import decode_state
from polyrhythm.core.workload import Workload
from polyrhythm.errors import PolicyError
from polyrhythm.policies import BSP, Balanced, parse_policy
from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.coordinator.members.member import Member
from polyrhythm.runtime.coordinator.phases.shares import check_own_data, check_shares
from polyrhythm.runtime.coordinator.stages import Stages
from polyrhythm.runtime.wire.protocol import Ready
from polyrhythm.runtime.wire.shard_protocol import LEAST_SHARE, NOT_IN_SHARES
from tests.changing import ARMS, STEPS, Changing, ChangingState
from tests.runtime.coordinator.test_coordinator import processed_once
from tests.runtime.fake_job import FakeJob, at_ticks


def test_each_policy_runs_in_a_phase_of_its_own() -> None:
    job = FakeJob("tests.changing:Changing", workers=3, samples=240, batch_size=4, epochs=2, seed=1)
    job.run({})
    specs = [trace.header.policy for trace in job.traced()]
    assert specs[0] == "bsp"
    assert {"asp", "local:2"} <= {*specs}
    assert any(remark.startswith("asp made step") for remark in job.remarks)


@pytest.mark.parametrize("seed", range(8))
def test_what_the_script_cannot_follow_is_not_tried_again(
    seed: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker says so on the way into it, where nobody has made a step of it."""
    monkeypatch.setattr(FakeJob, "against", {"asp": 2})
    job = FakeJob("tests.changing:Changing", workers=3, samples=240, batch_size=4, epochs=2, seed=seed)
    job.run({})
    stepped = [trace.header.policy for trace in job.traced() if trace.entries]
    assert "asp" not in stepped
    assert {"bsp", "balanced", "local:2"} <= {*stepped}
    assert job.coordinator.choice.stages.known.barred == {"asp"}
    assert caplog.text.count("train.py:3: no; tests.changing:Changing goes on without asp") == 1
    processed_once(job)


@pytest.mark.parametrize("seed", range(4))
def test_several_that_the_script_cannot_follow_are_no_attempts_to_meet(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    against = {arm.spec: 2 for arm in ARMS if arm.spec != "local:2"}
    monkeypatch.setattr(FakeJob, "against", against)
    job = FakeJob("tests.changing:Changing", workers=3, samples=240, batch_size=4, epochs=2, seed=seed)
    job.run({})
    assert job.given_up == ""
    assert {trace.header.policy for trace in job.traced() if trace.entries} == {"local:2"}
    processed_once(job)


@pytest.mark.parametrize("policies", [("tests.changing:Changing",), ("bsp", "tests.changing:Changing")])
def test_what_is_wanted_again_though_the_script_cannot_follow_it_is_asked_for_once(
    policies: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Two that were each wanted in place of the other began phases without end."""
    monkeypatch.setattr(Changing, "bar", lambda _, state, *__: replace(state, steps=state.steps + STEPS))
    monkeypatch.setattr(FakeJob, "against", {arm.spec: 2 for arm in ARMS})
    job = FakeJob(policies[0], workers=3, samples=240, batch_size=4, epochs=2, seed=0)
    job.run(at_ticks("switch", dict(enumerate(policies[1:], start=10))))
    assert [caplog.text.count(f"goes on without {arm.spec}\n") for arm in ARMS] == [1] * len(ARMS)
    processed_once(job)


def test_a_switch_of_somebody_else_ends_it() -> None:
    job = FakeJob("tests.changing:Changing", workers=3, samples=240, batch_size=4, epochs=2, seed=1)
    job.run({150: "switch local:4"})
    specs = [trace.header.policy for trace in job.traced()]
    assert specs[-1] == "local:4"
    assert set(specs[specs.index("local:4") :]) == {"local:4"}


def test_auto_begins_with_equal_shares_and_finds_who_is_slow() -> None:
    """The rank of number 2 takes three times as long for a sample as that of number 0."""
    job = FakeJob("auto", workers=3, samples=1800, batch_size=8, epochs=2, seed=2)
    job.run({})
    first = job.traced()[0]
    assert first.header.policy.startswith("balanced:risk=0.02")
    dealt = [d.shares for entry in first.entries for d in entry.decisions if isinstance(d, Proceed)]
    assert dealt[:4] == [None] * 4
    assert any(dealt)
    assert job.remarks[0].startswith(
        "balanced: ranks 1, 2 are" if "1" in job.remarks[0][:18] else "balanced: rank 2 is"
    )


def test_auto_begins_as_bsp_where_shares_cannot_be() -> None:
    """That is said in a line, and nothing is refused."""
    job, stages = Job(2, FakeJob("bsp", 2, 60, 2, 1, seed=0), lambda: 0.0), Stages(parse_policy("auto"), epochs=2)
    job.epoch, job.workload = 0, Workload(60, 60)
    job.members[0] = Member(Ready(0, 60, 4, own=True))
    assert stages.stage(job).policy == BSP()
    remark = stages.policy.remark(stages.known)
    assert remark.startswith("bsp: balanced cannot run here: policy balanced deals the mini-batches")


def test_a_model_with_batch_norm_has_no_share_of_one() -> None:
    """Nor a step of several mini-batches fewer than two for each."""
    job = Job(2, FakeJob("bsp", 2, 60, 2, 1, seed=0), lambda: 0.0)
    job.epoch, job.workload = 0, Workload(60, 60)
    job.members[0] = Member(Ready(0, 60, 4, terms={LEAST_SHARE: 2}))
    assert job.cluster(1).least_share == 2
    job.members[0] = Member(Ready(0, 60, 8, parts=4, terms={LEAST_SHARE: 2}))
    assert job.cluster(1).least_share == 8


def test_a_step_that_a_change_has_kept_from_beginning_is_not_counted_as_dropped() -> None:
    """Every sample counts once, and no gradient was computed for nothing."""
    job = FakeJob("bsp", workers=3, samples=1800, batch_size=8, epochs=2, seed=2)
    job.run({400: "switch balanced"})
    assert len(job.traced()) > 1
    assert not job.coordinator.job.ledger.dropped


def test_what_it_knows_survives_a_checkpoint() -> None:
    """A job that goes on deals its shares from the first step on, and does not learn once more who is slow."""
    job = FakeJob("auto", workers=3, samples=1800, batch_size=8, epochs=2, seed=2)
    job.run({600: "save 0"})
    (snapshot, applied), *_ = job.snapshots
    known = decode_state(snapshot.known)
    assert known.mind.wanted.spec == "balanced"
    again = FakeJob(snapshot.policy, 3, 1800, 8, 2, seed=2, resumed=snapshot)
    again.applied = Counter(applied)
    again.run({})
    first = again.traced()[0]
    assert first.header.policy.startswith("balanced")
    (_, (proceed, *_)), *_ = first.entries
    assert isinstance(proceed, Proceed)
    assert proceed.shares is not None
    assert again.remarks == []


def test_a_newer_state_that_nobody_can_read_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    job = FakeJob("auto", workers=3, samples=1800, batch_size=8, epochs=2, seed=2)
    job.run({600: "save 0"})
    snapshot = msgspec.structs.replace(job.snapshots[0][0], known='["","no.such:Mind",[]]')
    again = FakeJob(snapshot.policy, 3, 1800, 8, 2, seed=2, resumed=snapshot)
    assert again.coordinator.choice.stages.known.mind.evidence.reports == 0
    assert "policy auto begins anew" in caplog.text


@pytest.mark.parametrize("events", [{900: "kill 2"}, {700: "kill 1", 1200: "save 0"}])
def test_it_survives_deaths(events: dict[int, str]) -> None:
    """Who is left goes on, and what was measured of it holds."""
    job = FakeJob("auto", workers=4, samples=1800, batch_size=8, epochs=2, seed=2)
    job.run(events)
    known = job.coordinator.choice.stages.known
    assert len(known.mind.evidence.workers) == 3
    assert all(step.time.steps > 3 for _, step in known.mind.evidence.workers.items())


def test_mini_batches_that_a_script_reads_itself_are_not_cut() -> None:
    job = Job(2, FakeJob("bsp", 2, 60, 2, 1, seed=0), lambda: 0.0)
    job.members[0] = Member(Ready(0, 60, 4))
    check_own_data(parse_policy("balanced"), job)
    job.members[0] = Member(Ready(0, 60, 4, own=True))
    check_own_data(BSP(), job)
    with pytest.raises(PolicyError, match="in shares, but the script reads its data itself"):
        check_own_data(Balanced(), job)


@pytest.mark.parametrize(
    ("ready", "reason"),
    [
        (Ready(0, 60, 4, terms={NOT_IN_SHARES: "SyncBatchNorm 1 mixes gradients"}), "SyncBatchNorm 1 mixes gradients"),
        (Ready(0, 60, 4, terms={NOT_IN_SHARES: "samples are injected"}), "samples are injected"),
    ],
)
def test_what_cannot_be_dealt_in_shares_is_refused_before_it_is_in_force(ready: Ready, reason: str) -> None:
    job = Job(2, FakeJob("bsp", 2, 60, 2, 1, seed=0), lambda: 0.0)
    job.members[0], job.workload = Member(ready), Workload(60, 60)
    check_shares(BSP(), job)
    with pytest.raises(PolicyError, match=f"in shares, but {reason}"):
        check_shares(Balanced(), job)


@pytest.mark.parametrize("method", ["wanted", "observe", "keeps", "goes_back", "bar", "remark"])
def test_whatever_a_supervisor_raises_is_told_as_the_policys(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator would end with a traceback."""
    usual = getattr(Changing, method)

    def fail(policy: Changing, state: ChangingState, *rest: object) -> object:
        if state.steps < STEPS:
            return usual(policy, state, *rest)
        raise ValueError("oops")

    monkeypatch.setattr(Changing, method, fail)
    arms = tuple(map(parse_policy, ("asp", "tests.wrong_policies:StartsBadly", "bsp")))  # the second one is barred
    monkeypatch.setattr("tests.changing.ARMS", arms)
    job = FakeJob("tests.changing:Changing", workers=3, samples=240, batch_size=4, epochs=2, seed=1)
    with pytest.raises(PolicyError, match=rf"^policy .*Changing raised ValueError\('oops'\) in {method}"):
        job.run({})


def test_a_supervisor_that_wants_no_policy_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = Changing.wanted

    def nothing(policy: Changing, state: ChangingState) -> object:
        return usual(policy, state) if state.steps < STEPS else "asp"

    monkeypatch.setattr(Changing, "wanted", nothing)
    job = FakeJob("tests.changing:Changing", workers=3, samples=240, batch_size=4, epochs=2, seed=1)
    with pytest.raises(PolicyError, match=r"^policy .*Changing: wanted must return a policy but returned 'asp'"):
        job.run({})
