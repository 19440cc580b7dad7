"""What ranks draw in a script that sets no seed."""

from pathlib import Path

import pytest
import torch

from polyrhythm.runtime.script.data.alone import SETTERS, SharedStart
from tests.runtime.script.runs import Run, adapted


def drawn(run: Run) -> list[list[str]]:
    return [(run.folder / f"weights.{rank}").read_text(encoding="utf-8").split() for rank in run.ranks]


@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_a_script_for_one_process_draws_the_same_data_on_all_ranks(tmp_path: Path, policy: str) -> None:
    first, second = drawn(adapted(tmp_path, "unseeded.py", policy=policy, stand_in=False))
    assert first == second


def test_in_a_script_with_ranks_each_draws_its_own(tmp_path: Path) -> None:
    first, second = drawn(adapted(tmp_path, "unseeded.py", "ddp", stand_in=False))
    assert all(a != b for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("how", ["seeded", "restored"])
def test_a_seed_or_state_of_the_script_stays(tmp_path: Path, how: str) -> None:
    first, second = drawn(adapted(tmp_path, "unseeded.py", "ddp", how, stand_in=False))
    assert first == second


def test_a_state_that_was_kept_in_a_run_of_the_same_numbers_stays(tmp_path: Path) -> None:
    first, second = drawn(adapted(tmp_path, "unseeded.py", "ddp", "same", stand_in=False))
    assert first[0] == second[0]
    assert first[1:] != second[1:]


def test_torch_that_puts_back_its_own_state_has_set_no_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in SETTERS:  # which a start replaces for good
        monkeypatch.setattr(module, name, getattr(module, name))
    numbers = set()
    for rank in range(2):
        start = SharedStart("job", rank)
        with torch.random.fork_rng():
            torch.rand(())
        start.part()
        numbers.add(torch.rand(()).item())
    assert len(numbers) == 2
