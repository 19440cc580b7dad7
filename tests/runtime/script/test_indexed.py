"""Scripts that look rates up by the number of their mini-batch, or save with the last one."""

import ast
from pathlib import Path
from typing import Any

import pytest

from polyrhythm.runtime.script.data.indexed import comparisons
from tests.runtime.script.runs import adapted, plain


@pytest.mark.parametrize("policy", ["bsp", "asp", "local:4"])
def test_no_worker_takes_more_mini_batches_than_the_table_has(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path / "ours", "indexed.py", policy=policy, stand_in=False)
    taken = [(run.folder / f"taken.{rank}").read_text("utf-8").split() for rank in run.ranks]
    assert taken == [["12"] * 3] * 2
    assert "looks something up by the number of its mini-batch" in run.stderr()
    if policy == "bsp":
        theirs = plain(tmp_path / "theirs", "indexed.py", stand_in=False)
        assert (run.folder / "weights.0").read_text("utf-8") == (theirs.folder / "weights.0").read_text("utf-8")


@pytest.mark.parametrize("policy", ["bsp", "asp", "local:4"])
def test_a_slow_rank_comes_to_the_last_mini_batch_that_its_script_compares_with(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path, "last.py", policy=policy, stand_in=False)
    assert [(run.folder / f"saves.{rank}").read_text("utf-8") for rank in run.ranks] == ["3", "3"]
    assert "compares the number of its mini-batch with its loader's length" in run.stderr()


@pytest.mark.parametrize(("policy", "settings"), [("balanced", {}), ("asp", {"partition": "seldp"})])
def test_a_job_that_must_deal_says_that_the_last_one_may_not_come(
    tmp_path: Path, policy: str, settings: dict[str, Any]
) -> None:
    run = adapted(tmp_path, "last.py", policy=policy, stand_in=False, **settings)
    assert "which a slow worker does not reach" in run.stderr()


@pytest.mark.parametrize(
    "body",
    [
        "save(i == len(loader) - 1)",
        "if i + 1 == len(loader) and rank == 0: save()",
        "if (i + 1) % len(loader) == 0: save()",
        "if not (i + 1) % most: save()",
        "if at == most - 1: save()",
        "if i < len(loader) // 2: save()",
        "last = i == most - 1",
        "last = i == most - 1\n    if last: optimizer.step()\n    if last: save()",
        "if i == most - 1: optimizer.step(), save()",
        "last = most - 1\n    if i == last: save()",
    ],
)
def test_comparisons_are_found(body: str) -> None:
    assert found_in(body)


@pytest.mark.parametrize(
    "body",
    [
        "if i % 10 == 0: print(i)",
        "if i == len(loader) - 1: print(i)",
        'print(f"{i}/{len(loader)}", "last" if i == len(loader) - 1 else "")',
        "bar = tqdm(total=len(loader))",
        "if i % (len(loader) // 10) == 0: evaluate()",
        "if (i + 1) % 4 == 0 or i + 1 == len(loader): optimizer.step()",
        "last = i % 4 == 0 or i + 1 == most\n    if last: scaler.step(optimizer)",
        "if at == most: clip_grad_norm_(model.parameters(), 1), scaler.step(optimizer), scaler.update(), print(i)",
        "if i == len(x): save()",
        "if i > 100: break",
        "shown = colours[i % len(colours)]",
    ],
)
def test_what_changes_nothing_is_not_found(body: str) -> None:
    assert not found_in(body)


def found_in(body: str) -> list[ast.expr]:
    script = ast.parse(f"most = len(loader)\nfor i, x in enumerate(tqdm(loader)):\n    at = i + 1\n    {body}\n")
    loop = script.body[1]
    assert isinstance(loop, ast.For)
    return list(comparisons(loop, script))
