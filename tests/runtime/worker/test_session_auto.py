"""Auto on real workers: it begins as BSP, hears losses where it needs them, and loses no sample."""

import pytest
import torch

from tests.runtime.jobs import run_job
from tests.runtime.worker.test_session_balanced import MOMENTUM, every_sample_once, train


@pytest.mark.parametrize("policy", ["auto", "auto:async,risk=0.5"])
def test_every_sample_is_read_once(policy: str) -> None:
    results = run_job(train, 2, MOMENTUM, policy=policy)
    every_sample_once([seen for _, seen in results])


def test_a_short_job_is_bsp_to_the_bit() -> None:
    ours, theirs = (run_job(train, 2, MOMENTUM, policy=policy) for policy in ("auto", "bsp"))
    assert all(torch.equal(one[0], other[0]) for one, other in zip(ours, theirs, strict=True))
