"""Shares of a job are shares of all its epochs: found in the script's loop, or asked for."""

import runpy
from pathlib import Path

import pytest

from polyrhythm.core import Trace
from tests.runtime.script.runs import adapted, plain, try_adapted

LOOPS = {
    "for epoch in range(3):": 3,
    "for epoch in range(1, args.epochs + 1):": 7,
    "for self_epoch in trange(int(args.epochs), desc='Epoch'):": 7,
    "for epoch in tqdm(range(start, len(rates)), total=9):": 3,
    "for epoch, rate in enumerate(rates):": None,
    "for step in range(100):": None,
    "for epoch in range(ask()):": None,
    "for epoch in itertools.count():": None,
}


@pytest.mark.parametrize("loop", LOOPS)
def test_the_number_of_epochs_is_read_from_the_loop(tmp_path: Path, loop: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(
        "import argparse, itertools\n"
        "from polyrhythm.runtime.script.epochs import planned_epochs\n"
        "args, start, rates = argparse.Namespace(epochs=7), 1, [0.1] * 4\n"
        "tqdm, trange, ask = lambda each, **_: each, lambda count, **_: range(count), lambda: 1 / 0 if found else 2\n"
        "found = []\n"
        "def train():\n"
        "    for number in range(2):\n"
        "        found.append(planned_epochs())\n"
        f"{loop}\n"
        "    train()\n"
        "    break\n"
    )
    found = runpy.run_path(str(path))["found"][0]
    assert (found and found.epochs) == LOOPS[loop]
    assert found is None or found.place.endswith("train.py:9")


def test_a_share_is_one_of_all_epochs_of_the_loop(tmp_path: Path) -> None:
    traces = str(tmp_path / "traces")
    run = adapted(tmp_path / "run", "schedule.py", "ddp", "warm-up", policy="switch:bsp@0.5,asp", trace=traces)
    _, second = [Trace.load(path).header for path in sorted(Path(traces).iterdir())]
    assert second.policy == "asp"
    assert second.cluster.processed_samples == 4 * 96 // 2
    assert "switch:bsp@0.5,asp counts shares of 4 epochs" in run.stderr()


def test_a_share_of_nobody_knows_what_is_refused(tmp_path: Path) -> None:
    run = try_adapted(tmp_path, "odd.py", "plain", policy="switch:bsp@0.5,asp", ranks=1)
    assert run.codes == [2]
    assert "policy switch:bsp@0.5,asp counts shares of all epochs, and nobody has said how many" in run.stderr()


@pytest.mark.parametrize("settings", [{}, {"epochs": 4}])
def test_where_epochs_have_no_length_nobody_is_asked_for_their_number(tmp_path: Path, settings: dict[str, int]) -> None:
    run = try_adapted(tmp_path, "episodes.py", "400", policy="switch:bsp@0.5,asp", stand_in=False, **settings)
    assert 2 in run.codes
    assert all(run.codes)
    assert "counts shares of epochs whose length nobody knows; use a policy that counts none" in run.stderr()


@pytest.mark.parametrize("batches", ["12", "13"])
def test_an_epoch_whose_first_step_has_fewer_mini_batches_is_one(tmp_path: Path, batches: str) -> None:
    traces = str(tmp_path / "traces")
    run = adapted(tmp_path / "run", "ahead.py", batches, policy="switch:bsp@0.5,asp", trace=traces, stand_in=False)
    policies = [Trace.load(path).header.policy for path in sorted(Path(traces).iterdir())]
    assert policies in (["bsp", "asp"], ["bsp", "bsp", "asp"]), "the first epoch has fewer steps than its loader says"
    first, second = ((run.folder / f"weights.{rank}").read_text("utf-8") for rank in run.ranks)
    assert first == second


def test_under_bsp_its_steps_are_those_of_torchrun(tmp_path: Path) -> None:
    ours = adapted(tmp_path / "ours", "ahead.py", "12", stand_in=False)
    theirs = plain(tmp_path / "theirs", "ahead.py", "12", stand_in=False)
    for rank in ours.ranks:
        words = [(run.folder / f"weights.{rank}").read_text("utf-8") for run in (ours, theirs)]
        assert words[0] == words[1]
