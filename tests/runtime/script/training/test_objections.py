"""What an unmodified script has done stands against policies that cannot follow it, whoever asks for them."""

from pathlib import Path
from typing import Any

import pytest
import torch

from polyrhythm.core import Trace
from polyrhythm.policies import parse_policy
from tests.runtime.script.runs import KILL, SCRIPTS, switched
from tests.runtime.script.test_kinds import weights

VALUE = "inside the step loop, for which workers that make steps of their own have no common value; use policies in"
CASES = {
    "metric": ("asp", "plateau.step(1.0)", "ReduceLROnPlateau.step with an argument inside the step loop; workers"),
    "stop": ("ssp:3", "dist.broadcast", f"broadcast {VALUE}"),
    "flattened": ("esync", "dist.all_reduce", f"all_reduce {VALUE}"),
    "differentiated": ("asp", "loss = functional.all_reduce", f"all_reduce {VALUE}"),
    "load": ("local:4", "optimizer.step()", "the script loads parameters within its loop, where the job's are"),
}


OF_SEVERAL: dict[str, tuple[dict[str, Any], str]] = {
    "selsync:0.05,aggregate=gradients": ({}, "a policy that decides after the gradients cannot follow several"),
    "bsp": ({"policy": "asp", "compress": "int8"}, "gradients of several optimizers are not compressed; leave out"),
}


@pytest.mark.parametrize("what", CASES)
def test_a_live_switch_is_refused_and_the_job_goes_on(tmp_path: Path, what: str) -> None:
    policy, call, said = CASES[what]
    switches = {14: policy, 20: f"switch:bsp@0.9,({policy})"}
    run = switched(tmp_path, "plateau.py", what, switches=switches, refused=True)
    assert run.seen == [list(range(96))] * 3
    lines = [line for line in run.stderr().splitlines() if " refuses: " in line]
    asked = [parse_policy(spec).spec for spec in switches.values()]
    assert [line.partition(" is refused: rank ")[0].rpartition(" ")[2] for line in lines] == asked
    source = (SCRIPTS / "plateau.py").read_text(encoding="utf-8").splitlines()
    number = 1 + next(i for i, line in enumerate(source) if line.strip().startswith(call))
    assert [f"plateau.py:{number}: {said}" in line for line in lines] == [True, True]


@pytest.mark.parametrize("policy", OF_SEVERAL)
def test_a_policy_that_has_no_place_for_several_optimizers_is_refused(tmp_path: Path, policy: str) -> None:
    given, said = OF_SEVERAL[policy]
    run = switched(tmp_path, "several.py", "gan", switches={10: policy}, refused=True, **given)
    assert torch.equal(weights(run, 0), weights(run, 1))
    (line,) = (line for line in run.stderr().splitlines() if " refuses: " in line)
    assert " is refused: rank " in line
    assert said in line


def test_what_a_later_part_would_refuse_is_not_where_the_job_has_left_its_policy(tmp_path: Path) -> None:
    run = switched(tmp_path, "plateau.py", "late", policy="switch:bsp@0.9,asp", switches={4: "bsp"}, epochs=3)
    assert run.seen == [list(range(96))] * 3


def test_the_next_coordinator_knows_which_policy_goes_on(tmp_path: Path) -> None:
    """The one that has accepted the sequence is killed before the script is against a part of it."""
    settings: dict[str, Any] = {"switches": {4: "switch:bsp@0.9,asp", 8: KILL}, "max_coordinator_restarts": 9}
    run = switched(tmp_path / "run", "plateau.py", "late", epochs=3, trace=str(tmp_path / "traces"), **settings)
    assert run.seen == [list(range(96))] * 3
    phases = sorted((tmp_path / "traces").iterdir())
    assert [Trace.load(phase).header.policy for phase in phases][-2:] == ["asp", "bsp"]
