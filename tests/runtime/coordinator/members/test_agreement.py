"""What a rank is told that does not agree with another."""

from typing import Any

import pytest

from polyrhythm.runtime.coordinator.members.agreement import disagreement
from polyrhythm.runtime.coordinator.members.member import Member
from polyrhythm.runtime.wire.protocol import Ready, Term
from tests.runtime.fake_job import FakeJob

TERMS: dict[str, Term] = {"shuffle": True, "seed": 0}
CONTENT = (1.0, 0.5, 2.0, 0.25)


def ready(epoch: int = 0, samples: int = 60, **others: Any) -> Ready:
    return Ready(epoch, samples, 2, **{"terms": TERMS, "content": CONTENT, **others})


DIFFERENT: dict[str, dict[str, Any]] = {
    "seed=7, that of rank 1 has seed=0; give the same seed on every rank": {"terms": {"shuffle": True, "seed": 7}},
    "shuffle=False, that of rank 1 has shuffle=True": {"terms": {"shuffle": False}},
    "has seed=None, that of rank 1 has seed=0": {"terms": {"shuffle": True}},
    "subset=0a, that of rank 1 has subset=None; a random split differs": {"terms": {**TERMS, "subset": "0a"}},
    "61 samples, that of rank 1 has 60": {"samples": 61},
    "for itself, and rank 1 as the job deals it out; all workers must run the same script, and read": {"own": True},
    "otherwise than that of rank 1; give all the same partition": {"shards": (30, 30)},
    "sample 19 of its data set is 3 in the mean, on rank 1 0.5": {"content": (1.0, 3.0, 2.0, 0.25)},
    "has other tensors than on rank 1": {"content": CONTENT * 2},
}


@pytest.mark.parametrize("said", DIFFERENT)
def test_one_line_names_the_argument_and_both_values(said: str) -> None:
    line = disagreement(ready(**DIFFERENT[said]), ready(), rank=1)
    assert said in line
    assert "\n" not in line


def test_who_is_dealt_its_data_is_told_that_another_is_not() -> None:
    line = disagreement(ready(), ready(own=True), rank=1)
    assert line.startswith("it reads its data as the job deals it out, and rank 1 for itself; all workers must")


def test_who_agrees_may_have_another_batch_size_and_other_loader_processes() -> None:
    assert disagreement(ready(), Ready(0, 60, 16, 4, terms=TERMS, content=CONTENT), rank=1) == ""


def test_only_workers_of_one_epoch_must_agree() -> None:
    job = FakeJob("bsp", 1, 60, 2, 1, 0).coordinator.job
    job.members, job.epoch = {1: Member(ready(0))}, -1
    assert "seed=1" in job.refusal(0, ready(0, terms={"shuffle": True, "seed": 1}))
    job.epoch = 0
    assert job.refusal(0, ready(1, terms={"shuffle": True, "seed": 1})) == ""
