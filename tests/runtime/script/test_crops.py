"""Random numbers of loader processes: those that the script's first step has started go on."""

from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, DistributedSampler

from polyrhythm.runtime.script.data.reading import Reading
from tests.runtime.script.runs import adapted, plain


@pytest.mark.parametrize("how", [(), ("ahead",)], ids=str)
def test_under_bsp_they_are_those_of_torchrun(tmp_path: Path, how: tuple[str, ...]) -> None:
    ours, theirs = adapted(tmp_path / "ours", "crops.py", *how), plain(tmp_path / "theirs", "crops.py", *how)
    for rank in ours.ranks:
        names = [run.folder / f"weights.{rank}" for run in (ours, theirs)]
        assert names[0].read_text("utf-8") == names[1].read_text("utf-8")


def loader_of(samples: int, processes: int = 0) -> DataLoader[int]:
    data: Any = list(range(samples))
    return DataLoader(data, 2, sampler=DistributedSampler(data, 1, 0, shuffle=False), num_workers=processes)


def test_what_follows_may_have_another_order() -> None:
    reading = Reading(loader_of(8), iter)
    assert next(reading).tolist() == [0, 1]
    assert reading.followed_by(iter([[6, 7]])) is None
    assert next(reading).tolist() == [6, 7]


def test_an_order_that_does_not_begin_with_what_is_read_is_given_back_whole() -> None:
    reading = Reading(loader_of(8, processes=1), iter)
    assert next(reading).tolist() == [0, 1]
    rest = reading.followed_by(iter([[6, 7], [2, 3]]))
    assert rest is not None
    assert list(rest) == [[6, 7], [2, 3]]
