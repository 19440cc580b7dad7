"""Parameters whose first gradient comes after the first step."""

from pathlib import Path

import pytest

from tests.runtime.script.runs import adapted, plain

OPTIMIZERS = [
    ("NAdam", "lr=0.01"),
    ("Rprop", "lr=0.01"),
    ("ASGD", "lr=0.01"),
    ("SGD", "lr=0.1", "momentum=0.9", "dampening=0.5"),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda words: words[0])
def test_their_state_begins_as_without_us(tmp_path: Path, optimizer: tuple[str, ...]) -> None:
    """Zeros are not what every optimizer begins with."""
    alone, run = tmp_path / "alone", tmp_path / "run"
    plain(alone, "late.py", *optimizer)
    adapted(run, "late.py", *optimizer)
    assert (run / "weights.0").read_text("utf-8") == (alone / "weights.0").read_text("utf-8")
    assert (run / "weights.1").read_text("utf-8") == (run / "weights.0").read_text("utf-8")


@pytest.mark.parametrize(("dampening", "said"), [("0.5", 1), ("0", 0)])
def test_on_servers_it_is_said_where_their_momentum_begins_otherwise(tmp_path: Path, dampening: str, said: int) -> None:
    run = adapted(tmp_path, "late.py", "SGD", "lr=0.1", "momentum=0.9", f"dampening={dampening}", policy="asp")
    line = "seldom.weight, which trains later than others, begins its momentum with 1 - dampening of its first gradient"
    assert sum(line in run.stderr(rank) for rank in run.ranks) == said * len(run.ranks)
