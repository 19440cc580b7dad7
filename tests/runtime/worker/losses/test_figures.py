import re
import sys
from types import SimpleNamespace

import pytest
import torch

from polyrhythm.errors import UsageError
from polyrhythm.runtime.worker.losses.figures import ScriptFigures, WriterEar


def test_what_a_script_tells_its_writer_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    class SummaryWriter:
        def add_scalar(self, tag: str, scalar_value: object, step: int | None = None) -> tuple[str, object, int | None]:
            return tag, scalar_value, step

    monkeypatch.setitem(sys.modules, "tensorboardX.writer", SimpleNamespace(SummaryWriter=SummaryWriter))
    plain, figures = SummaryWriter.add_scalar, ScriptFigures()
    ear = WriterEar(figures)
    assert SummaryWriter().add_scalar("eval/accuracy", torch.tensor(0.5), 3) == ("eval/accuracy", 0.5, 3)
    SummaryWriter().add_scalar("note", "no number")
    for number in range(100):
        SummaryWriter().add_scalar(f"tag {number}", number)
    ear.close()
    assert SummaryWriter.add_scalar is plain
    taken = figures.take()
    assert (len(taken), taken["eval/accuracy"]) == (32, 0.5)


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"accuracy": "high"}, "accuracy must be a number for log but got 'high'"),
        ({"a" * 65: 1.0}, "a name for log must be a text of 1 to 64 characters but got"),
        ({str(number): 1.0 for number in range(33)}, "log takes 32 names at most"),
    ],
)
def test_what_cannot_be_reported_is_one_line(values: dict[str, object], line: str) -> None:
    with pytest.raises(UsageError, match=re.escape(line)):
        ScriptFigures().tell(values)
