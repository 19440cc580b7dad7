"""Sequences of policies on real workers: each in a phase of its own, at the right sample, with nothing lost; and
which policy a job switches to.
"""

from collections import Counter
from itertools import pairwise
from typing import Any, ClassVar

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import polyrhythm
from polyrhythm.core import Cluster, Policy
from polyrhythm.core.workload import UNKNOWN, Workload
from polyrhythm.errors import PolicyError
from polyrhythm.policies import ASP, is_built_in, parse_policy
from polyrhythm.runtime.coordinator.job import Job, workload_of
from polyrhythm.runtime.coordinator.members.member import Member
from polyrhythm.runtime.coordinator.phases.shares import check_lengths
from polyrhythm.runtime.coordinator.stages import PolicyChoice, Stages
from polyrhythm.runtime.wire.protocol import Confirmed, Ready
from polyrhythm.runtime.wire.tls.files import CA
from tests import wrong_policies
from tests.runtime.coordinator.test_coordinator import EPOCHS, processed_once
from tests.runtime.fake_job import FakeJob
from tests.runtime.jobs import Numbered, Seen, flat, make_model, make_optimizer, run_job, step

SEQUENCES = [
    "switch:bsp@0.3,asp",
    "switch:asp@0.4,bsp",
    "switch:bsp@0.2,(local:3)@0.3,asp",
    "switch:(selsync:0.05)@0.3,(k-sync:2)@0.3,bsp",
    "switch:bsp@0.5,(tuned:bsp,lr=0.5)",
    "switch:esync@0.5,asp",
    "switch:asp@0.3,(k-async:2)@0.3,bsp,late=drop",
    "switch:esync@0.5,asp,late=drop",
    "switch:(local:4)@0.5,(switch:(k-sync:2)@0.7,(selsync:0.05))",
    "switch:(switch:asp@0.3,(local:3))@0.6,bsp,late=drop",
]


@pytest.mark.parametrize("policy", SEQUENCES)
@given(
    seed=st.integers(0, 2**32),
    workers=st.integers(1, 4),
    samples=st.integers(8, 60),
    ahead=st.integers(0, 2),
    switch=st.none() | st.tuples(st.integers(1, 100), st.sampled_from(["asp", "switch:bsp@0.6,asp"])),
)
@settings(max_examples=20, derandomize=True, deadline=None)
def test_no_sample_is_lost_or_doubled(
    policy: str, seed: int, workers: int, samples: int, ahead: int, switch: tuple[int, str] | None
) -> None:
    job = FakeJob(policy, workers, samples, 3, EPOCHS, seed, ahead)
    job.run({switch[0]: f"switch {switch[1]}"} if switch else {})
    assert job.coordinator.job.skipped_samples == 0
    processed_once(job)


def phases(job: FakeJob) -> list[tuple[str, int]]:
    """The policy of each phase, and how many samples had been processed when it began."""
    return [(trace.header.policy, trace.header.cluster.processed_samples) for trace in job.traced()]


@given(seed=st.integers(0, 2**32), workers=st.integers(1, 4), share=st.floats(0.0, 1.0))
@settings(max_examples=40, derandomize=True, deadline=None)
def test_lockstep_stops_behind_the_step_that_serves_its_share(seed: int, workers: int, share: float) -> None:
    job = FakeJob(f"switch:bsp@{share},asp", workers, 60, 3, EPOCHS, seed, 0)
    job.run({})
    width, due, found = 3 * workers, share * 120, phases(job)
    started = next((samples for policy, samples in found if policy == "asp"), 120)
    # At the end of an epoch too little may be left for a phase; then its end is the switch.
    ends = [60, 120]
    rounds = [epoch * 60 + width * k for epoch in range(2) for k in range(60 // width + 1)]
    assert started in (min(s for s in (*rounds, *ends) if s >= due - 1e-9), *ends)
    assert 0 <= started - due < 3 * width
    assert len(found) <= 2


def test_asp_hands_over_once_its_share_is_applied() -> None:
    job = FakeJob("switch:asp@0.25,bsp", 3, 60, 2, EPOCHS, 5, 0)
    job.run({})
    (first, _), (second, began) = phases(job)
    assert (first, second) == ("asp", "bsp")
    assert 30 <= began <= 30 + 3 * 2, "what was in flight is applied too"


def test_steps_in_flight_may_be_dropped_at_a_switch() -> None:
    job = FakeJob("switch:asp@0.25,bsp,late=drop", 3, 60, 2, EPOCHS, 5, 0)
    job.run({})
    (_, _), (second, began) = phases(job)
    assert (second, began) == ("bsp", 30), "nothing but what was applied by then"
    assert job.coordinator.job.ledger.dropped == {"cancelled": 2}
    processed_once(job)


def test_what_was_processed_before_decides_where_a_job_stands() -> None:
    stages = Stages(parse_policy("switch:bsp@0.25,(ssp:2)@0.5,asp"), epochs=2)
    job = Job(1, None, lambda: 0.0)  # type: ignore[arg-type]
    job.members[0], job.epoch = Member(Ready(0, 40, 4)), 0
    job.workload = workload_of(Ready(0, 40, 4))
    policies = []
    for done in (0, 19, 20, 59, 60, 80):
        job.samples = done
        policies.append(stages.stage(job).policy.spec)
    assert policies == ["bsp", "bsp", "ssp:2", "ssp:2", "asp", "asp"]
    assert parse_policy("asp").stages(Cluster(1)) == ()


def begun_under(chosen: str, *policies: str, own: bool, caplog: pytest.LogCaptureFixture) -> list[str]:
    """What a job says as phases begin under these policies, the last one after a switch to it."""
    job = Job(1, None, lambda: 0.0)  # type: ignore[arg-type]
    job.members[0], job.epoch = Member(Ready(0, 40, 4, own=own)), 0
    job.workload = workload_of(Ready(0, 40, 4, own=own))
    job.count_own_data()
    choice = PolicyChoice(parse_policy(chosen), 2, job, lambda *_: None)
    caplog.clear()
    for policy in policies:
        choice.begin(parse_policy(policy))
    choice.take(parse_policy(policies[-1]))
    choice.begin(parse_policy(policies[-1]))
    return [record.message.partition(" lose ")[0] for record in caplog.records]


@pytest.mark.parametrize(
    ("chosen", "policies", "said"),
    [
        ("backup:1", ("backup:1", "backup:1"), ["backup:1"]),
        ("esync:blocking=false", ("esync:blocking=false",), ["esync:blocking=false"]),
        ("switch:bsp@0.5,(k-sync:2)", ("bsp", "bsp"), ["switch:bsp@0.5,(k-sync:2)"]),
        ("switch:bsp@0.5,asp,late=drop", ("bsp", "bsp"), ["switch:bsp@0.5,asp,late=drop"]),
        ("bsp", ("bsp", "k-batch-sync:k=2"), ["k-batch-sync:k=2"]),
        ("bsp", ("bsp", "asp"), []),
    ],
)
def test_who_abandons_steps_is_said_to_lose_data_of_the_scripts_own(
    chosen: str, policies: tuple[str, ...], said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    lines = [f"steps that {parse_policy(spec).spec} abandons" for spec in said]
    assert begun_under(chosen, *policies, own=True, caplog=caplog) == lines
    assert begun_under(chosen, *policies, own=False, caplog=caplog) == []


def train(rank: int, momentum: float) -> list[Seen]:
    """Two epochs."""
    model = make_model(seed=rank)
    optimizer = make_optimizer(model, lr=0.05, momentum=momentum)
    epochs = []
    with polyrhythm.session(model, optimizer, epochs=2) as session:
        for _ in range(2):
            seen = Seen()
            for x, y, index in session.loader(Numbered(80), batch_size=4):
                step(model, optimizer, x, y)
                seen.indices += index.tolist()
            seen.policy, seen.parameters = session.policy, flat(model)
            epochs.append(seen)
    return epochs


def test_a_switch_in_the_middle_of_an_epoch() -> None:
    ranks = run_job(train, 2, 0.9, policy="switch:bsp@0.25,asp", epochs=2)
    for number in range(2):
        counts = Counter(index for seen in ranks for index in seen[number].indices)
        assert counts == Counter(range(80))
        assert {seen[number].policy for seen in ranks} == {"asp"}
        assert torch.equal(ranks[0][number].parameters, ranks[1][number].parameters)


def test_momentum_is_carried_over() -> None:
    """One worker under ASP is plain training, and so is a switch from BSP to it."""
    (plain,) = run_job(train, 1, 0.9, policy="bsp", epochs=2)
    (switched,) = run_job(train, 1, 0.9, policy="switch:bsp@0.25,asp@0.25,bsp@0.25,asp", epochs=2)
    for before, after in pairwise([plain, switched]):
        assert torch.allclose(before[-1].parameters, after[-1].parameters, atol=1e-6)


@pytest.mark.parametrize("share", [0.3, 0.5])
@pytest.mark.parametrize("first", ["local:4", "diloco:4"])
def test_optimizers_that_went_apart_have_one_state_where_steps_are_equal(first: str, share: float) -> None:
    """Replicas met before, in the middle of an epoch or at its end, but each has a momentum of its own."""
    ranks = run_job(train, 2, 0.9, policy=f"switch:({first})@{share},bsp", epochs=2)
    assert torch.equal(ranks[0][-1].parameters, ranks[1][-1].parameters)


def first_parameters(rank: int) -> torch.Tensor:
    """What the first mini-batch is computed on; nothing changes it, because the rate is zero."""
    model = make_model(seed=rank)
    optimizer = make_optimizer(model, lr=0.0)
    with polyrhythm.session(model, optimizer) as session:
        for number, (x, y, _) in enumerate(session.loader(Numbered(24), batch_size=2)):
            if number == 0:
                found = flat(model)
            step(model, optimizer, x, y)
    return found


def test_on_the_servers_everyone_starts_from_the_parameters_of_the_lowest_rank() -> None:
    first, second = run_job(first_parameters, 2, policy="asp")
    assert torch.equal(first, second)
    assert torch.equal(first, flat(make_model(seed=0)))


class Workers:
    """Workers that are asked about policies and answer when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []
        self.changed: list[tuple[str, bool]] = []
        self.told: list[str] = []

    def propose(self, number: int, policy: str) -> None:
        self.asked.append((number, policy))

    def note(self, policy: Policy[Any], at_once: bool) -> None:
        self.changed.append((policy.spec, at_once))


OWN = parse_policy(f"{wrong_policies.__name__}:Raises")


@pytest.fixture
def asked() -> Workers:
    return Workers()


def choice(
    asked: Workers, first: str = "bsp", script: int | None = None, samples: int = 100, epochs_given: bool = True
) -> PolicyChoice:
    """Of a job with two workers, perhaps of an unmodified script, under a policy that has begun."""
    job = Job(2, asked, lambda: 0.0)  # type: ignore[arg-type]
    job.workload, job.epoch, job.epochs_given = Workload(samples, samples), 0, epochs_given
    job.members = {rank: Member(Ready(0, 100, batch_size=2, script=script)) for rank in range(2)}
    made = PolicyChoice(parse_policy(first), 1, job, asked.note)
    made.phase = 1
    made.begin(parse_policy(first))
    return made


def test_a_built_in_policy_is_taken_at_once(asked: Workers) -> None:
    choice(asked).propose(parse_policy("asp"), asked.told.append)
    assert (asked.asked, asked.changed, asked.told) == ([], [("asp", False)], [""])


def test_one_of_ones_own_is_taken_when_all_have_it(asked: Workers) -> None:
    made = choice(asked)
    made.propose(OWN, asked.told.append)
    made.propose(OWN, asked.told.append)
    assert asked.asked == [(1, OWN.spec)]
    made.confirmed(0, Confirmed(1))
    made.confirmed(0, Confirmed(1))
    assert not asked.changed
    made.lost(1)
    assert (asked.changed, asked.told) == ([(OWN.spec, False)], ["", ""])


def test_one_worker_is_enough_to_refuse(asked: Workers) -> None:
    made = choice(asked)
    made.propose(OWN, asked.told.append)
    made.confirmed(1, Confirmed(1, "no such file"))
    made.confirmed(0, Confirmed(1))
    assert asked.told == [*made.notices] == [f"the switch to {OWN.spec} is refused: rank 1: no such file"]
    assert not asked.changed
    assert made.stages.policy.spec == "bsp"


def test_a_later_wish_comes_before_an_earlier_one(asked: Workers) -> None:
    made = choice(asked)
    made.propose(OWN, asked.told.append)
    made.propose(parse_policy("asp"), asked.told.append)
    made.confirmed(0, Confirmed(1, "an answer to what is over"))
    assert asked.told == [f"the switch to {OWN.spec} is refused: asp was asked for before all had answered", ""]
    assert asked.changed == [("asp", False)]


class NeverBegins(ASP):
    """Fails before it is in force."""

    summary: ClassVar[str] = "fails at its beginning"

    def init(self, cluster: Cluster) -> None:
        raise RuntimeError("not here")


def test_a_later_wish_that_cannot_be_leaves_the_earlier_one(asked: Workers) -> None:
    made = choice(asked)
    made.propose(OWN, asked.told.append)
    never = parse_policy(f"{__name__}:NeverBegins")
    made.propose(never, asked.told.append)
    assert [*made.notices] == asked.told
    (said,) = asked.told
    assert said.startswith(f"the switch to {never.spec} is refused: ")
    assert "not here" in said
    for rank in range(2):
        made.confirmed(rank, Confirmed(1))
    assert (asked.changed, asked.told[1:]) == ([(OWN.spec, False)], [""])


@pytest.mark.parametrize(
    ("samples", "epochs_given", "why"),
    [
        (100, False, "counts shares of all epochs, and nobody has said how many there are; give polyrhythm run"),
        (UNKNOWN, True, "counts shares of epochs whose length nobody knows; use a policy that counts none, such as"),
    ],
)
@pytest.mark.parametrize("spec", ["switch:bsp@0.5,asp", "elastic:policy=(switch:bsp@0.5,asp)", "post-local:h=4,at=0.5"])
def test_a_share_of_what_has_no_known_length_is_refused_later_too(
    asked: Workers, samples: int, epochs_given: bool, why: str, spec: str
) -> None:
    """A share of one epoch was taken for one of all, without a word."""
    made = choice(asked, samples=samples, epochs_given=epochs_given)
    made.propose(parse_policy(spec), asked.told.append)
    made.propose(parse_policy("asp"), asked.told.append)
    assert why in asked.told[0]
    assert (asked.told[1:], asked.changed) == ([""], [("asp", False)])


@pytest.mark.parametrize("epoch", [0, 3])
def test_a_share_of_a_stream_is_refused_in_each_epoch(asked: Workers, epoch: int) -> None:
    job = Job(2, asked, lambda: 0.0)  # type: ignore[arg-type]
    job.workload, job.epoch = Workload(UNKNOWN, UNKNOWN), epoch
    job.members = {rank: Member(Ready(epoch, UNKNOWN, batch_size=2, own=True)) for rank in range(2)}
    job.count_own_data()
    check_lengths(parse_policy("asp"), job)
    with pytest.raises(PolicyError, match="counts shares of epochs whose length nobody knows"):
        check_lengths(parse_policy("switch:bsp@0.5,asp"), job)


@pytest.mark.parametrize("spec", ["nonsense", "./nowhere.py:Mine"])
def test_a_script_that_wants_what_is_not_there_is_told_in_the_log(asked: Workers, spec: str) -> None:
    made = choice(asked)
    made.propose_for(1, spec)
    (notice,) = made.notices
    assert notice.startswith(f"the switch to {spec} that rank 1 has asked for is refused: ")


def test_what_fails_gives_way_once_to_what_has_begun(asked: Workers) -> None:
    made = choice(asked, "asp")
    made.propose(parse_policy("bsp"), asked.told.append)  # which never begins
    made.propose(parse_policy("ssp:2"), asked.told.append)
    made.phase = 2
    made.begin(parse_policy("ssp:2"))
    for _ in range(3):
        made.fail(PolicyError("oops"))
    assert asked.changed[2:] == [("asp", True)]
    assert [*made.notices] == ["oops; ssp:2 is out of force, and asp goes on"]
    made.phase = 3
    with pytest.raises(PolicyError, match="oops"):
        made.fail(PolicyError("oops"))


@pytest.mark.parametrize("asked_for", [("bsp",), ("bsp", "local:4")])
def test_what_has_failed_does_not_come_back(asked: Workers, asked_for: tuple[str, ...]) -> None:
    """Others are asked for before the policy that goes on has begun once more, and the last one fails, too."""
    made = choice(asked, "asp")
    made.propose(parse_policy("ssp:2"), asked.told.append)
    made.phase = 2
    made.begin(parse_policy("ssp:2"))
    made.fail(PolicyError("oops"))
    for spec in asked_for:
        made.propose(parse_policy(spec), asked.told.append)
    made.phase = 3
    made.fail(PolicyError("oops"))
    assert asked.changed == [("ssp:2", False), ("asp", True), *((spec, False) for spec in asked_for), ("asp", True)]
    made.phase = 4
    with pytest.raises(PolicyError, match="oops"):
        made.fail(PolicyError("oops"))


def test_the_first_policy_has_none_before_it(asked: Workers) -> None:
    with pytest.raises(PolicyError, match="oops"):
        choice(asked).fail(PolicyError("oops"))


@pytest.mark.parametrize(
    ("spec", "built_in"),
    [("bsp", True), ("switch:bsp@0.5,asp", True), (OWN.spec, False), (f"switch:bsp@0.5,({OWN.spec})", False)],
)
def test_what_is_built_in_needs_no_answer(spec: str, built_in: bool) -> None:
    assert is_built_in(parse_policy(spec)) == built_in


def test_with_tls_none_goes_from_worker_to_worker_before_the_first_epoch_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(CA, "ca.pem")
    job, told = FakeJob("asp", 2, 60, 3, EPOCHS, seed=1), list[str]()
    job.coordinator.choice.propose(parse_policy("bsp"), told.append)
    assert len(told) == 1
    assert "which TLS does not cover" in told[0]
    job.run({40: "diverge 0"})
    assert {policy.spec for policy, _, _ in job.traces} == {"asp"}
    assert all(worker.ended for worker in job.workers.values())
