"""A script may make its data set anew for each epoch."""

from pathlib import Path

import pytest

from tests.runtime.script.runs import adapted, plain, try_adapted


@pytest.mark.parametrize("policy", ["bsp", "asp", "local:3"])
def test_each_epoch_is_dealt_out_of_its_own_data_set(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path / "ours", "renewed.py", "ddp", policy=policy, stand_in=False)
    assert run.seen == [list(range(100 * epoch, 100 * epoch + 48)) for epoch in range(3)]
    if policy == "bsp":
        theirs = plain(tmp_path / "theirs", "renewed.py", "ddp", stand_in=False)
        assert all(
            (each.folder / "weights.0").read_text() == (theirs.folder / "weights.0").read_text() for each in (run,)
        )


def test_also_by_a_script_for_one_process(tmp_path: Path) -> None:
    run = adapted(tmp_path, "renewed.py", "alone", stand_in=False)
    assert run.seen[2] == list(range(200, 248))


def test_one_of_another_length_is_refused_for_what_it_is(tmp_path: Path) -> None:
    run = try_adapted(tmp_path, "renewed.py", "shorter", stand_in=False)
    assert run.codes == [2, 2]
    assert "the data set of another epoch must be as long as the first" in run.stderr()
    assert "40 samples and 48" in run.stderr()


def test_one_of_another_batch_size_is_refused_for_that(tmp_path: Path) -> None:
    run = try_adapted(tmp_path, "renewed.py", "wider", stand_in=False)
    assert run.codes == [2, 2]
    assert "must have the batch size of the first, so that the job can deal it out: 8 and 4; keep" in run.stderr()
