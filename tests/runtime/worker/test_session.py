"""Sessions on real workers: every policy, switched while running, gives what a plain loop gives."""

import os
import sys
from collections import Counter
from typing import Any

import pytest
import torch

import polyrhythm
from polyrhythm.policies import parse_policy
from tests.runtime.jobs import Numbered, Seen, flat, make_model, make_optimizer, run_job, step

SAMPLES = 70
EVERY_POLICY = [
    "bsp",
    "asp",
    "ssp:1",
    "local:3",
    "dssp:1,s_high=3",
    "k-sync:2",
    "post-local:2",
    "k-batch-sync:3",
    "k-async:2",
    "ringmaster:1",
    "bsp",
    "k-batch-async:2",
    "backup:1",
    "local:2",
    "k-group:2",
    "bsp",
]


def go_through(rank: int, policies: list[str], options: dict[str, Any]) -> list[Seen]:
    """One epoch under each policy; the last rank asks for each switch, and all start from different parameters."""
    model = make_model(seed=rank)
    optimizer = make_optimizer(model, lr=0.1, momentum=0.9)
    data, epochs = Numbered(SAMPLES), []
    with polyrhythm.session(model, optimizer) as session:
        for epoch, policy in enumerate(policies):
            if rank == 2:
                session.switch(policy)
            seen = Seen()
            for x, y, index in session.loader(data, batch_size=4, seed=epoch, **options):
                step(model, optimizer, x, y)
                seen.indices += index.tolist()
                seen.policy = session.policy
            seen.parameters = flat(model)
            epochs.append(seen)
    return epochs


def test_one_job_goes_through_every_policy() -> None:
    by_rank = run_job(go_through, 3, EVERY_POLICY, {}, policy="bsp", epochs=len(EVERY_POLICY))
    for number, policy in enumerate(EVERY_POLICY):
        epoch = [ranks[number] for ranks in by_rank]
        assert {seen.policy for seen in epoch if seen.indices} == {policy}
        assert all(torch.equal(seen.parameters, epoch[0].parameters) for seen in epoch), policy
        counts = Counter(index for seen in epoch for index in seen.indices)
        assert set(counts) == set(range(SAMPLES)), policy
        assert parse_policy(policy).traits.cancels or set(counts.values()) == {1}, policy


def name_the_policy(rank: int) -> tuple[str, str, str]:
    """A script that says what the job is to be; what holds before, in and for the job."""
    model = make_model()
    optimizer = make_optimizer(model, lr=0.1)
    with polyrhythm.session(model, optimizer, policy="ssp:s=1", epochs=2, compress="fp16") as session:
        before = session.policy
        for x, y, _ in session.loader(Numbered(8), batch_size=4):
            step(model, optimizer, x, y)
        return before, session.policy, session._client.config.compress


def test_a_script_names_the_policy_unless_somebody_stronger_does() -> None:
    assert run_job(name_the_policy, 2) == [("ssp:1", "ssp:1", "fp16")] * 2
    assert run_job(name_the_policy, 2, policy="local:2") == [("local:2", "local:2", "fp16")] * 2


def count_itself(rank: int, environment: str) -> int:
    """How many ranks a script believes in, whose framework has taken `WORLD_SIZE` out of the environment or not."""
    os.environ.pop("WORLD_SIZE", None)
    if environment:
        os.environ["WORLD_SIZE"] = environment
    model = make_model()
    with polyrhythm.session(model, make_optimizer(model, lr=0.1)) as session:
        for x, y, _ in session.loader(Numbered(8), batch_size=4):
            step(model, session._optimizer, x, y)
        return session.world_size


@pytest.mark.parametrize(("environment", "ranks"), [("", 2), ("3", 3)])
def test_a_job_knows_its_ranks_without_the_environment(environment: str, ranks: int) -> None:
    """Of hosts that come and go the environment has the most, which the coordinator does not await."""
    assert run_job(count_itself, 2, environment) == [ranks] * 2


def hook(rank: int) -> bool:
    """Whether a traceback of the script is shown as ever within a session."""
    model, before = make_model(seed=0), sys.excepthook
    optimizer = make_optimizer(model, lr=0.1)
    with polyrhythm.session(model, optimizer) as session:
        for x, y, _index in session.loader(Numbered(8), batch_size=4):
            step(model, optimizer, x, y)
        return sys.excepthook is before


def test_a_traceback_does_not_call_every_rank_rank_0() -> None:
    assert run_job(hook, 2, policy="bsp") == [True, True]
