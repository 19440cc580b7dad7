"""``--compress`` for a script that knows nothing of it: what gradients travel as shows in its parameters."""

from pathlib import Path

import pytest
import torch

from tests.runtime.script.runs import adapted, switched, try_adapted
from tests.runtime.script.test_kinds import weights


@pytest.mark.parametrize("alone", [[], ["alone"]], ids=["ranks", "alone"])
def test_gradients_travel_compressed_under_bsp(tmp_path: Path, alone: list[str]) -> None:
    runs = {kind: adapted(tmp_path / kind, "kinds.py", "SGD", *alone, compress=kind) for kind in ("none", "bf16")}
    full, halves = weights(runs["none"]), weights(runs["bf16"])
    assert torch.equal(halves, weights(runs["bf16"], 1))
    assert not torch.equal(halves, full)
    assert torch.allclose(halves, full, atol=1e-2)


def test_what_is_not_sent_now_is_sent_later(tmp_path: Path) -> None:
    few, full = (adapted(tmp_path / kind, "kinds.py", "SGD", compress=kind) for kind in ("topk:0.2", "none"))
    assert torch.equal(weights(few), weights(few, 1))
    assert 0 < (weights(few) - weights(full)).abs().max() < 0.1


def test_replicas_keep_in_step_through_a_switch(tmp_path: Path) -> None:
    run = switched(tmp_path, "kinds.py", "SGD", switches={6: "local:2", 16: "bsp"}, compress="bf16")
    assert torch.equal(weights(run, 0), weights(run, 1))


def test_what_cannot_be_compressed_is_refused(tmp_path: Path) -> None:
    several = try_adapted(tmp_path / "several", "several.py", "gan", ranks=1, compress="bf16")
    assert several.codes == [2]
    assert "gradients of several optimizers are not compressed; leave out --compress" in several.stderr()
    hook = try_adapted(tmp_path / "hook", "odd.py", "hook", ranks=1, compress="bf16")
    assert hook.codes == [2]
    assert "a communication hook and --compress both replace the exchange" in hook.stderr()
