"""Accelerate, Lightning and Hugging Face's Trainer in a session: the examples, with every sample once an epoch."""

import re
from pathlib import Path

import pytest

from tests.runtime.script.runs import adapted

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("policy", ["bsp", "asp"])
@pytest.mark.parametrize("framework", ["accelerate", "lightning", "transformers"])
def test_two_workers_see_every_sample_once_in_each_of_two_epochs(tmp_path: Path, framework: str, policy: str) -> None:
    run = adapted(tmp_path, str(EXAMPLES / f"train_{framework}.py"), policy=policy, stand_in=False)
    lines = [line for rank in run.ranks for line in run.stdout(rank)]
    seen = [int(found) for line in lines for found in re.findall(r"^rank \d: (\d+) samples", line)]
    assert len(seen) == 2
    assert sum(seen) == 2 * 1797
