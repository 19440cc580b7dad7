"""Accelerate, Lightning and Hugging Face's Trainer as they are, in scripts that know nothing of Polyrhythm."""

from pathlib import Path

import pytest

from tests.runtime.script.runs import Run, adapted, plain, switched

SCRIPTS = Path(__file__).parent / "scripts"
FRAMEWORKS = ("accelerate", "lightning", "transformers")


def script(framework: str) -> str:
    return str(SCRIPTS / f"with_{framework}.py")


def result(run: Run) -> str:
    """Parameters, steps and evaluation at the end, which all ranks have."""
    texts = {(run.folder / f"weights.{rank}").read_text(encoding="utf-8") for rank in run.ranks}
    (text,) = texts
    return text


@pytest.mark.parametrize("what", ["simple", "accumulated"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_under_bsp_it_is_what_torchrun_makes_of_it(tmp_path: Path, framework: str, what: str) -> None:
    ours = adapted(tmp_path / "ours", script(framework), what, stand_in=False)
    assert result(ours) == result(plain(tmp_path / "theirs", script(framework), what, stand_in=False))


@pytest.mark.parametrize("policy", ["asp", "local:5", "selsync"])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_ranks_end_with_one_model(tmp_path: Path, framework: str, policy: str) -> None:
    assert result(adapted(tmp_path, script(framework), "simple", policy=policy, stand_in=False))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_it_follows_live_switches(tmp_path: Path, framework: str) -> None:
    switches = {6: "asp", 20: "local:4", 36: "bsp"}
    assert result(switched(tmp_path, script(framework), "simple", switches=switches, stand_in=False))


@pytest.mark.parametrize("what", ["stream", "accumulated", "map-style"])
def test_what_rank_0_reads_for_all_is_trained_on_as_under_torchrun(tmp_path: Path, what: str) -> None:
    ours = adapted(tmp_path / "ours", script("dispatch"), what, stand_in=False)
    assert result(ours) == result(plain(tmp_path / "theirs", script("dispatch"), what, stand_in=False))


@pytest.mark.parametrize("policy", ["local:5", "selsync"])
def test_ranks_to_which_rank_0_hands_data_end_with_one_model(tmp_path: Path, policy: str) -> None:
    assert result(adapted(tmp_path, script("dispatch"), "stream", policy=policy, stand_in=False))
