"""The coordinator with workers in memory: samples, switches and deaths under random schedules."""

import itertools

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from polyrhythm.core import Proceed, replay
from polyrhythm.core.placement import runtime_placement
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.coordinator.coordinator import Coordinator
from polyrhythm.runtime.wire.protocol import Bye, ToCoordinator
from tests.runtime.fake_job import FakeJob, at_ticks

POLICIES = [
    "bsp",
    "balanced",
    "tests.restless:Restless",
    "tests.changing:Changing",
    "auto",
    "asp",
    "ssp:1",
    "dssp:1,3",
    "k-sync:2",
    "k-batch-sync:3",
    "k-async:2",
    "ringmaster:1",
    "ringmaster:1,stop=true",
    "k-batch-async:2",
    "backup:1",
    "k-group:2",
    "local:3",
    "post-local:3,at=0.3",
    "fedavg:0.5,e=0.2",
    "diloco:3",
    "diloco:4,overlap=2,fragments=2",
    "diloco:3,quorum=1",
    "selsync:0.05",
    "selsync:0.05,aggregate=gradients",
    "selsync:inf",
    "esync",
    "esync:blocking=false",
    "elastic:(switch:bsp@0.5,asp),window=1,patience=1",
    "greedy:(switch:bsp@0.5,asp),window=1,patience=1",
    "kbandit:window=1,every=2",
    "rlp",
    "tests.runtime.abandoning:Abandoning",
]
EPOCHS = 2

policies = st.sampled_from(POLICIES)
seeds = st.integers(0, 2**32)


def processed_once(job: FakeJob) -> None:
    """Every position of every epoch was applied exactly once, or skipped by the stated policy and counted.

    A step that a dead worker has made with the others, and that its script skipped, may count as processed: nobody else
    knows that it was skipped.
    """
    assert set(job.applied.values()) <= {1}
    assert 0 <= job.coordinator.job.samples - sum(job.applied.values()) <= job.untold_skipped
    assert job.coordinator.job.samples + job.coordinator.job.skipped_samples == EPOCHS * job.samples
    for trace in job.traced():
        list(replay(parse_policy(trace.header.policy), trace))
        times = [entry.event.time_s for entry in trace.entries]
        assert times == sorted(times)


@pytest.mark.parametrize("policy", POLICIES)
@given(
    seed=seeds, workers=st.integers(1, 4), samples=st.integers(8, 60), batch=st.integers(1, 5), ahead=st.integers(0, 3)
)
@settings(max_examples=20, derandomize=True, deadline=None)
def test_every_sample_of_every_epoch_is_applied_once(
    policy: str, seed: int, workers: int, samples: int, batch: int, ahead: int
) -> None:
    job = FakeJob(policy, workers, samples, batch, EPOCHS, seed, ahead)
    job.run({})
    assert job.coordinator.job.skipped_samples == 0
    processed_once(job)


@given(
    seed=seeds,
    workers=st.integers(1, 4),
    samples=st.integers(20, 80),
    first=policies,
    ahead=st.integers(0, 2),
    switches=st.dictionaries(st.integers(1, 300), policies, max_size=4),
)
@settings(max_examples=120, derandomize=True, deadline=None)
def test_switches_lose_and_double_no_sample(
    seed: int, workers: int, samples: int, first: str, ahead: int, switches: dict[int, str]
) -> None:
    job = FakeJob(first, workers, samples, 3, EPOCHS, seed, ahead)
    job.run(at_ticks("switch", switches))
    assert job.coordinator.job.skipped_samples == 0
    processed_once(job)


@given(
    seed=seeds,
    workers=st.integers(2, 4),
    samples=st.integers(30, 80),
    first=policies,
    ahead=st.integers(0, 2),
    kills=st.dictionaries(st.integers(1, 200), st.integers(1, 3), min_size=1, max_size=2),
    switches=st.dictionaries(st.integers(1, 200), policies, max_size=2),
)
@settings(max_examples=150, derandomize=True, deadline=None)
def test_the_others_finish_when_workers_die(
    seed: int, workers: int, samples: int, first: str, ahead: int, kills: dict[int, int], switches: dict[int, str]
) -> None:
    job = FakeJob(first, workers, samples, 3, EPOCHS, seed, ahead)
    events = at_ticks("switch", switches)
    job.run(events | {tick: f"kill {rank % workers or 1}" for tick, rank in kills.items()})
    processed_once(job)


@pytest.mark.parametrize(
    "policy",
    ["bsp", "tests.restless:Restless", "local:3", "diloco:4,overlap=2,fragments=2", "selsync:0.05,aggregate=gradients"],
)
def test_what_only_the_dead_have_completed_has_not_happened(policy: str) -> None:
    """A rank completes an exchange, tells of it and dies, and its connections with it, before the others have."""
    undone = 0
    for seed, tick in itertools.product(range(4), range(1, 60)):
        job = FakeJob(policy, 3, 30, 2, EPOCHS, seed)
        job.run({tick: "kill 2"})
        processed_once(job)
        undone += job.undone
    assert undone


@pytest.mark.parametrize("policy", ["bsp", "tests.restless:Restless"])
def test_a_step_that_one_has_and_another_has_not(policy: str) -> None:
    """The death of a rank ends an exchange for some of the others only; the next death may take those who have it."""
    missed = 0
    for seed, tick in itertools.product(range(6), range(1, 60)):
        job = FakeJob(policy, 4, 40, 2, EPOCHS, seed)
        job.run({tick: "kill 3", tick + 1 + seed * 3: "kill 1"})
        processed_once(job)
        missed += job.missed
    assert missed


@given(
    seed=seeds,
    workers=st.integers(1, 3),
    samples=st.integers(30, 80),
    first=policies,
    ahead=st.integers(0, 2),
    joins=st.lists(st.integers(1, 150), min_size=1, max_size=2, unique=True),
    switches=st.dictionaries(st.integers(1, 150), policies, max_size=2),
    kills=st.dictionaries(st.integers(1, 150), st.integers(1, 2), max_size=1),
)
@settings(max_examples=150, derandomize=True, deadline=None)
def test_newcomers_take_their_part(
    seed: int,
    workers: int,
    samples: int,
    first: str,
    ahead: int,
    joins: list[int],
    switches: dict[int, str],
    kills: dict[int, int],
) -> None:
    """Also between the moment at which a phase opens and the one at which its state is on the servers."""
    job = FakeJob(first, workers, samples, 3, EPOCHS, seed, ahead)
    events = at_ticks("switch", switches)
    events |= {tick: f"kill {rank}" for tick, rank in kills.items() if rank < workers}
    job.run(events | {tick: f"join {workers + number}" for number, tick in enumerate(joins)})
    processed_once(job)


@given(
    seed=seeds,
    workers=st.integers(2, 4),
    samples=st.integers(20, 60),
    first=st.sampled_from([policy for policy in POLICIES if runtime_placement(parse_policy(policy)) == "servers"]),
    ahead=st.integers(0, 2),
    kill=st.integers(1, 150),
    pause=st.integers(1, 80),
)
@settings(max_examples=150, derandomize=True, deadline=None)
def test_one_that_has_died_comes_back(
    seed: int, workers: int, samples: int, first: str, ahead: int, kill: int, pause: int
) -> None:
    """Also as the others stand before the next epoch: under its old rank, and not in the phase in which it died."""
    job = FakeJob(first, workers, samples, 3, EPOCHS, seed, ahead)
    job.run({kill: "kill 1", kill + pause: "join 1"})
    processed_once(job)


@pytest.mark.parametrize("policy", ["asp", "ssp:1", "dssp:0,2", "k-sync:1"])
def test_who_comes_when_all_others_are_through_with_the_epoch_goes_on_with_them(policy: str) -> None:
    """Its Joined names all who are there, so that none of them is taken to be gone; `FakeJob` looks at each."""
    for seed in range(40):
        job = FakeJob(policy, 3, 12 + seed % 5, 3, EPOCHS, seed)
        job.run({12 + seed % 9: "kill 1", 20 + seed % 17: "join 4", 28 + seed % 23: "join 1"})
        processed_once(job)


@pytest.mark.parametrize("policy", ["asp", "ssp:2", "k-sync:1"])
def test_who_comes_back_alone_makes_the_rest_from_what_the_servers_have(policy: str) -> None:
    for seed, kill in itertools.product(range(3), range(8, 60, 4)):
        job = FakeJob(policy, 2, 30, 2, EPOCHS, seed)
        job.run({kill: "kill 1", kill + 1: "join 1", kill + 2: "kill 0"})
        assert job.coordinator.job.skipped_samples == 0
        processed_once(job)


@given(
    seed=seeds,
    workers=st.integers(1, 4),
    first=policies,
    ahead=st.integers(0, 2),
    switches=st.dictionaries(st.integers(1, 100), policies, max_size=2),
)
@settings(max_examples=100, derandomize=True, deadline=None)
def test_steps_that_the_script_skips_are_counted(
    seed: int, workers: int, first: str, ahead: int, switches: dict[int, str]
) -> None:
    job = FakeJob(first, workers, 40, 3, EPOCHS, seed, ahead, skip=0.2)
    job.run(at_ticks("switch", switches))
    processed_once(job)


@given(
    seed=seeds,
    workers=st.integers(2, 4),
    first=policies,
    ahead=st.integers(0, 2),
    kills=st.dictionaries(st.integers(1, 100), st.integers(1, 3), min_size=1, max_size=2),
)
@settings(max_examples=200, derandomize=True, deadline=None)
def test_steps_that_the_script_skips_are_counted_when_workers_die(
    seed: int, workers: int, first: str, ahead: int, kills: dict[int, int]
) -> None:
    job = FakeJob(first, workers, 40, 3, EPOCHS, seed, ahead, skip=0.2)
    job.run({tick: f"kill {rank % workers or 1}" for tick, rank in kills.items()})
    processed_once(job)


@given(
    seed=seeds,
    workers=st.integers(1, 4),
    samples=st.integers(20, 60),
    first=policies,
    ahead=st.integers(0, 2),
    leave=st.sampled_from([0.02, 0.1, 0.5]),
    switches=st.dictionaries(st.integers(1, 200), policies, max_size=2),
    kills=st.dictionaries(st.integers(1, 200), st.integers(1, 3), max_size=1),
)
@settings(max_examples=150, derandomize=True, deadline=None)
@example(1284, 4, 20, "asp", 0, 0.1, {}, {13: 1})  # all leave, and one dies as the others go on from the servers' state
@example(5, 2, 20, "bsp", 0, 0.1, {}, {28: 1})  # one leaves, and the other, which has gone on, dies
@example(3, 3, 31, "post-local:3,at=0.3", 0, 0.02, {}, {40: 1})  # one misses a sum that another steps on from alone
def test_scripts_may_leave_their_loops_early(
    seed: int,
    workers: int,
    samples: int,
    first: str,
    ahead: int,
    leave: float,
    switches: dict[int, str],
    kills: dict[int, int],
) -> None:
    """The others process what is left; what nobody is left for is skipped, and counted."""
    job = FakeJob(first, workers, samples, 3, EPOCHS, seed, ahead, leave=leave)
    events = at_ticks("switch", switches)
    job.run(events | {tick: f"kill {rank % workers or 1}" for tick, rank in kills.items() if workers > 1})
    processed_once(job)


class BetweenEpochs(FakeJob):
    """Worker 1 dies when the second epoch is over, and comes back before the third; then the others may die, too."""

    alone = due = over = False

    def run(self, events: dict[int, str], limit: int = 100_000) -> None:
        self.coordinator.note = self._note
        super().run(events, limit)

    def _note(self, stand: str) -> None:
        self.due = not self.over and stand == "between" and self.coordinator.job.epoch == 1

    def _ring(self) -> None:
        super()._ring()
        if self.due:
            self.due, self.over = False, True
            self._event("kill", "1")
            self._event("join", "1")
            if self.alone:
                self._event("kill", "0")


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("policy", ["bsp", "balanced", "local:3", "selsync:0.05", "esync", "asp"])
def test_a_worker_may_die_and_come_back_between_two_epochs(policy: str, alone: bool) -> None:
    """It gets the state of the others, or the job ends if nobody has it; nobody goes on from how it was at first."""
    for seed in range(10):
        job = BetweenEpochs(policy, 2, 24, 3, 3, seed)
        job.alone = alone
        job.run({})
        if job.given_up:
            assert alone
        else:
            assert set(job.applied.values()) <= {1}
            assert sum(job.applied.values()) == job.coordinator.job.samples


@pytest.mark.parametrize("tick", range(2, 40))
def test_the_last_worker_may_die_at_any_moment(tick: int) -> None:
    """Also while it brings the state to the servers."""
    FakeJob("bsp", 1, 60, 3, EPOCHS, seed=3).run({2: "switch asp", tick: "kill 0"})


@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_when_all_are_gone_a_switch_is_heard_and_no_record_made(policy: str) -> None:
    job = FakeJob(policy, 2, 60, 3, EPOCHS, seed=3)
    job.run({20: "kill 0", 21: "kill 1"})
    refusals: list[str] = []
    job.coordinator.choice.propose(parse_policy("ssp:1"), refusals.append)
    assert refusals == [""]
    assert not job.coordinator.job.has_position


def test_a_policy_shows_its_last_state() -> None:
    job = FakeJob("selsync:0.05", 2, 60, 3, EPOCHS, seed=1)
    job.run({})
    ((policy, cluster, entries),) = job.traces
    state = policy.init(cluster)
    for entry in entries:
        state, _ = policy.decide(state, entry.event)
    assert job.coordinator.figures == policy.figures(state)
    assert 0 < job.coordinator.figures["lssr"] < 1


@pytest.mark.parametrize("tick", range(30, 90, 10))
def test_a_schedule_counts_what_was_processed_before_its_phase(tick: int) -> None:
    """A phase that starts after a third of the workload, because a worker has died, starts with local steps."""
    job = FakeJob("post-local:3,at=0.3", 3, 60, 3, EPOCHS, seed=1)
    job.run({tick: "kill 2"})
    _, (_, cluster, entries) = job.traces
    (start,) = entries[0].decisions
    assert isinstance(start, Proceed)
    assert 0 < cluster.processed_samples < EPOCHS * job.samples
    late = cluster.processed_samples >= 0.3 * EPOCHS * job.samples
    assert start.exchange == ("replicas" if late else "gradients")


@pytest.mark.parametrize("policy", ["bsp", "asp", "local:3", "switch:bsp@0.5,asp"])
def test_whether_all_stand_is_asked_once_for_each_message(policy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loss also asks before it is seen whether that ends the epoch."""
    asked, counts = list[int](), list[int]()
    receive, ask = Coordinator.receive, Coordinator._go_on_if_standing

    def counted(self: Coordinator, worker: int, message: ToCoordinator) -> None:
        asked.append(0)
        receive(self, worker, message)
        if not isinstance(message, Bye):
            counts.append(asked[-1])

    def noted(self: Coordinator) -> None:
        asked[-1:] = [count + 1 for count in asked[-1:]]
        ask(self)

    monkeypatch.setattr(Coordinator, "receive", counted)
    monkeypatch.setattr(Coordinator, "_go_on_if_standing", noted)
    processed_once(played(policy))
    assert max(counts) == 1


def played(policy: str) -> FakeJob:
    job = FakeJob(policy, 3, 40, 4, EPOCHS, seed=0)
    job.run({})
    return job
