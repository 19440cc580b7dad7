"""What an unmodified script has done stands against policies that cannot follow it, whoever asks for them."""

from pathlib import Path

import pytest

from polyrhythm.policies import parse_policy
from tests.runtime.script.runs import SCRIPTS, switched

VALUE = "inside the step loop, for which workers that make steps of their own have no common value; use policies in"
CASES = {
    "metric": ("asp", "plateau.step(1.0)", "ReduceLROnPlateau.step with an argument inside the step loop; workers"),
    "stop": ("ssp:3", "dist.broadcast", f"broadcast {VALUE}"),
    "flattened": ("esync", "dist.all_reduce", f"allreduce {VALUE}"),
    "load": ("local:4", "optimizer.step()", "the script loads parameters within its loop, where the job's are"),
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
