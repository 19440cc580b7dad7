"""Parameters that nobody trains, but that the script changes."""

from pathlib import Path

from tests.runtime.script.runs import adapted


def test_they_are_averaged_with_the_replicas(tmp_path: Path) -> None:
    run = adapted(tmp_path, "momentum.py", policy="local:4")
    first, second = ((tmp_path / f"weights.{rank}").read_text("utf-8") for rank in run.ranks)
    assert first == second
