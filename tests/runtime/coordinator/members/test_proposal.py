"""What an unmodified script has done is asked for before a switch, and once more on the way into its phase."""

from collections.abc import Mapping
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.errors import PolicyError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.wire.protocol import Confirmed
from tests.runtime.coordinator.test_coordinator import EPOCHS, processed_once
from tests.runtime.coordinator.test_stages import Workers, choice
from tests.runtime.fake_job import FakeJob


@pytest.fixture
def asked() -> Workers:
    return Workers()


def test_workers_of_an_unmodified_script_are_asked_about_a_built_in_policy(asked: Workers) -> None:
    made = choice(asked, script=0)
    made.propose(parse_policy("asp"), asked.told.append)
    assert (asked.asked, asked.changed, asked.told) == ([(1, "asp")], [], [])
    made.confirmed(1, Confirmed(1, "train.py:3: no"))
    assert asked.told == [*made.notices] == ["the switch to asp is refused: rank 1: train.py:3: no"]
    assert (asked.changed, made.stages.policy.spec) == ([], "bsp")
    made.propose(parse_policy("bsp"), asked.told.append)  # which runs
    assert (len(asked.asked), asked.told[1:]) == (1, [""])


def test_who_could_not_be_asked_yet_is_asked_when_it_can_be(asked: Workers) -> None:
    """The connection on which it is asked comes after the worker's own."""
    made = choice(asked, script=0)
    made.ask_again(1)
    made.propose(parse_policy("asp"), asked.told.append)
    made.confirmed(0, Confirmed(1))
    made.ask_again(0)
    made.ask_again(1)
    made.confirmed(1, Confirmed(1))
    made.ask_again(1)
    assert (asked.asked, asked.changed, asked.told) == ([(1, "asp")] * 2, [("asp", False)], [""])


def test_who_is_lost_while_it_is_asked_is_not_waited_for(asked: Workers) -> None:
    made = choice(asked, script=0)
    made.propose(parse_policy("asp"), asked.told.append)
    made.lost(0)
    assert not asked.told
    made.confirmed(1, Confirmed(1, "train.py:3: no"))
    assert asked.told == ["the switch to asp is refused: rank 1: train.py:3: no"]


def test_an_earlier_wish_comes_if_workers_refuse_a_later_one(asked: Workers) -> None:
    """It was given up for the later one before anybody had answered that, and so neither came."""
    made, told = choice(asked, script=0), list[str]()
    made.propose(parse_policy("asp"), asked.told.append)
    made.propose(parse_policy("local:4"), told.append)
    assert (asked.asked, asked.told, told) == ([(1, "asp"), (2, "local:4")], [], [])
    made.confirmed(1, Confirmed(2, "train.py:3: no"))
    assert told == [*made.notices] == ["the switch to local:4 is refused: rank 1: train.py:3: no"]
    for number in (1, 2):
        made.confirmed(0, Confirmed(number))
    made.lost(1)
    assert (asked.told, asked.changed) == ([""], [("asp", False)])


def test_the_same_wish_again_comes_after_one_in_between(asked: Workers) -> None:
    made = choice(asked, script=0)
    for spec in ("asp", "local:4", "asp", "asp"):
        made.propose(parse_policy(spec), asked.told.append)
    assert asked.asked == [(1, "asp"), (2, "local:4"), (3, "asp")]
    made.ask_again(1)
    assert asked.asked[3:] == asked.asked[:3]
    for worker in (0, 1):
        made.lost(worker)
    assert (asked.changed, asked.told) == ([("asp", False), ("local:4", False), ("asp", False)], [""] * 4)


@given(
    wishes=st.lists(st.sampled_from(["asp", "ssp:2", "local:4", "k-sync:2", "bsp"]), min_size=1, max_size=5),
    against=st.sets(st.sampled_from(["asp", "ssp:2", "local:4"])),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=200, derandomize=True, deadline=None)
def test_the_latest_wish_that_nobody_refuses_comes(wishes: list[str], against: set[str], seed: int) -> None:
    """However answers and wishes are interleaved; whoever asks is told once, and what is true."""
    asked, chance, told = Workers(), Random(seed), [list[str]() for _ in wishes]
    made, due = choice(asked, script=0), list[tuple[int, Confirmed]]()
    for wish, tell in zip(wishes, told, strict=True):
        known = len(asked.asked)
        made.propose(parse_policy(wish), tell.append)
        for number, spec in asked.asked[known:]:
            refusal = "no" if spec in against else ""
            due += [(0, Confirmed(number)), (1, Confirmed(number, refusal))]
        chance.shuffle(due)
        while due and chance.random() < 0.5:
            made.confirmed(*due.pop())
    for worker, answer in due:
        made.confirmed(worker, answer)
    assert made.spec == next((wish for wish in reversed(wishes) if wish not in against), "bsp")
    assert [len(each) for each in told] == [1] * len(wishes)
    for wish, (refusal,) in zip(wishes, told, strict=True):
        late = refusal.endswith(" was asked for before all had answered")
        assert late or refusal.endswith(": no") == (wish in against) == bool(refusal)


def test_a_policy_may_be_refused_on_the_way_into_it_where_another_can_take_its_place(asked: Workers) -> None:
    made = choice(asked, script=0)
    assert not made.enter(parse_policy("bsp"))
    made.propose(parse_policy("asp"), asked.told.append)
    made.confirmed(0, Confirmed(1))
    made.confirmed(1, Confirmed(1))
    made.phase = 2
    assert made.enter(parse_policy("asp"))
    for rank in range(2):
        made.fail(PolicyError(f"train.py:{rank}: no"), parse_policy("asp"))
    assert asked.changed[1:] == [("bsp", True)]
    assert [*made.notices] == ["train.py:0: no; asp does not begin, and bsp goes on"]
    made.phase = 3
    assert not made.enter(parse_policy("bsp"))
    assert not choice(asked).enter(parse_policy("asp")), "a script with a session follows every policy"


def test_what_was_chosen_after_a_policy_that_is_refused_on_the_way_into_it_comes_next(asked: Workers) -> None:
    """It was accepted, and then the policy before both went on."""
    made = choice(asked, script=0)
    for number, spec in enumerate(("asp", "local:4"), start=1):
        made.propose(parse_policy(spec), asked.told.append)
        for rank in range(2):
            made.confirmed(rank, Confirmed(number))
        made.phase = 2
        made.enter(parse_policy("asp")) if spec == "asp" else None
    made.fail(PolicyError("train.py:3: no"), parse_policy("asp"))
    assert asked.told == ["", ""]
    assert (made.spec, asked.changed[-1]) == ("local:4", ("local:4", True))
    assert [*made.notices] == ["train.py:3: no; local:4 goes on without asp"]


@pytest.mark.parametrize("policy", ["asp", "esync", "(selsync:0.05)"])
@given(
    seed=st.integers(0, 2**32), tick=st.integers(40, 100), rank=st.integers(0, 2), event=st.sampled_from(["", "kill 1"])
)
@settings(max_examples=20, derandomize=True, deadline=None)
def test_a_script_that_is_against_a_policy_goes_on_under_the_one_before(
    policy: str, seed: int, tick: int, rank: int, event: str
) -> None:
    """It was not when it was asked; with a death at any time, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FakeJob, "against", {parse_policy(policy).spec: rank})
        job = FakeJob("local:3", 3, 60, 3, EPOCHS, seed, 0)
        job.run({tick: f"switch {policy}", **({tick + seed % 20 + 1: event} if event else {})})
    stepped = {trace.header.policy for trace in job.traced() if trace.entries}
    against_is_gone = event and rank == 1
    assert against_is_gone or stepped == {"local:3"}
    assert job.coordinator.job.skipped_samples == 0
    processed_once(job)


class SilentJob(FakeJob):
    """Rank 0 has not answered yet when it is lost."""

    against: Mapping[str, int] = {"esync": 0}

    def propose(self, number: int, policy: str) -> None:
        for rank in (1, 2):
            self.coordinator.choice.confirmed(rank, Confirmed(number))


@pytest.mark.parametrize("first", ["bsp", "local:3", "asp", "esync:blocking=false"])
@given(seed=st.integers(0, 2**32), tick=st.integers(1, 100), later=st.integers(1, 20))
@settings(max_examples=20, derandomize=True, deadline=None)
def test_the_last_one_who_is_asked_is_lost(first: str, seed: int, tick: int, later: int) -> None:
    job = SilentJob(first, 3, 60, 3, EPOCHS, seed, 0)
    job.run({tick: "switch ssp:2", tick + later: "kill 0"})
    assert job.coordinator.choice.spec == "ssp:2" or 0 in [w.rank for w in job.workers.values() if w.finished]
    assert job.coordinator.job.skipped_samples == 0
    processed_once(job)
