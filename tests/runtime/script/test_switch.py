"""An unmodified script goes from one policy to another and back while it runs."""

from pathlib import Path

import pytest

from tests.runtime.script.runs import adapted, switched

CASES = {
    "forked loaders": ("trainer.py", "3", "--samples", "192", "--workers", "2"),
    "accumulation": ("residual.py", "--samples", "192", "--accumulate", "2"),
}


@pytest.mark.parametrize("case", CASES)
def test_bsp_to_asp_to_bsp_in_one_run(tmp_path: Path, case: str) -> None:
    run = switched(tmp_path, *CASES[case], switches={3: "asp", 10: "bsp"})
    assert run.seen == [list(range(192))] * 3


def test_a_script_for_one_process_is_switched_too(tmp_path: Path) -> None:
    run = switched(tmp_path, "alone.py", "3", "shuffle", switches={2: "asp", 7: "local:2"})
    first, second = run.epochs_of(0), run.epochs_of(1)
    epochs = [sorted(a + b) for a, b in zip(first, [second[0][8:], *second[1:]], strict=True)]
    assert epochs == [list(range(96))] * 3


def test_a_script_with_a_session_keeps_no_exchange_of_an_earlier_phase(tmp_path: Path) -> None:
    """It is not watched, as one for which we open a session is until then; buckets are as large as the model."""
    run = adapted(tmp_path, "sessioned.py", policy="switch:bsp@0.3,(local:2)@0.3,bsp", stand_in=False)
    assert [run.stdout(rank) for rank in run.ranks] == [["1"]] * 2
