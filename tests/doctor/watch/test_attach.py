"""Plain jobs under torchrun, with the watcher in their ranks and without."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from polyrhythm.doctor.culprits import culprits
from polyrhythm.doctor.readers.rings import read_rings
from polyrhythm.doctor.watch.attach import run_watched, watched_environment
from polyrhythm.early_end import early_end
from polyrhythm.errors import UsageError
from tests.runtime.script.runs import plain

ROOT = Path(__file__).parents[3]
SCRIPT = str(ROOT / "benchmarks" / "_slow_rank.py")

ON_EVENTS = """
import runpy, sys
from polyrhythm.doctor.watch import watcher
from polyrhythm.testing import cuda
import torch
torch.cuda.Event, torch.cuda.is_current_stream_capturing = cuda.FakeEvent, lambda: False
watcher.STAMPED = ()
sys.argv[0] = {script!r}
runpy.run_path({script!r}, run_name="__main__")
"""


def torchrun(ranks: int, *words: str) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    return [*launcher, SCRIPT, *words]


def test_parameters_are_the_same_bytes_with_the_watcher(tmp_path: Path) -> None:
    words = "--steps", "40", "--step-ms", "0"
    plain(tmp_path, SCRIPT, *words, "--save", str(tmp_path / "alone.raw"), stand_in=False)
    assert run_watched(torchrun(2, *words, "--save", str(tmp_path / "watched.raw")), tmp_path) == 0
    assert (tmp_path / "watched.raw").read_bytes() == (tmp_path / "alone.raw").read_bytes()
    evidence = read_rings(sorted(tmp_path.glob("*.ring")))
    # The first exchange begins the first step, and the last is only told of by the next forward pass.
    assert (evidence.ranks, evidence.steps, evidence.batch_size) == ((0, 1), 39, 8)


def test_exchanges_on_a_device_are_timed_by_events_and_change_nothing(tmp_path: Path) -> None:
    """With the stand-in for CUDA, whose events are the host's clock; torch's own stamps are not asked for."""
    words = "--steps", "40", "--step-ms", "5"
    plain(tmp_path, SCRIPT, *words, "--save", str(tmp_path / "alone.raw"), stand_in=False)
    script = tmp_path / "on_events.py"
    script.write_text(ON_EVENTS.format(script=SCRIPT), encoding="utf-8")
    command = [*torchrun(2)[:-1], str(script), *words, "--save", str(tmp_path / "watched.raw")]
    assert run_watched(command, tmp_path) == 0
    assert (tmp_path / "watched.raw").read_bytes() == (tmp_path / "alone.raw").read_bytes()
    evidence = read_rings(sorted(tmp_path.glob("*.ring")))
    assert (evidence.ranks, evidence.steps) == ((0, 1), 38)
    assert evidence.own_s.mean() > 0.005
    assert evidence.exchange_s.mean() > 0


def test_who_arrives_last_is_named_with_what_held_it_up(tmp_path: Path) -> None:
    """The delay of one rank lengthens the backward pass of all others."""
    steps, parts = 60, {"computing": "computing", "loading": "data loading"}
    words = "--kinds", ",".join(parts), "--steps", str(steps), "--step-ms", "10", "--extra-ms", "60"
    environment = watched_environment(tmp_path)
    done = subprocess.run(torchrun(3, *words), env=environment, check=True, capture_output=True, text=True)
    slow = {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines() if line.split()[0] in parts}
    evidence = read_rings(sorted(tmp_path.glob("*.ring")))
    for number, (kind, part) in enumerate(parts.items()):
        found = culprits(evidence.between(number * steps + 3, (number + 1) * steps - 3))[0]
        assert [(one.rank, one.part, one.kind) for one in found] == [(slow[kind], part, "persistent")]


def test_another_sitecustomize_still_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text("import os\nos.environ['SEEN'] = 'yes'\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))
    environment = {**watched_environment(tmp_path), "RANK": "0", "LOCAL_RANK": "0"}
    code = "import os, torch; print(os.environ['SEEN'], torch.autograd.backward.__name__)"
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
    assert done.stdout.split() == ["yes", "backward"]


def test_torch_is_left_alone_where_nobody_watches(tmp_path: Path) -> None:
    code = "import torch; print(hasattr(torch.autograd.backward, '__wrapped__'))"
    seen = []
    for extra in ({}, {"RANK": "0", "LOCAL_RANK": "0"}):
        environment = {**watched_environment(tmp_path), **extra}
        done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, text=True)
        seen.append(done.stdout.strip())
    assert seen == ["False", "True"]


def test_a_command_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot start 'no-such-thing': No such file"):
        run_watched(["no-such-thing"], tmp_path)


def test_the_exit_status_of_the_command_is_handed_on(tmp_path: Path) -> None:
    assert run_watched([sys.executable, "-c", "raise SystemExit(7)"], tmp_path) == 7


def test_the_command_ends_with_us_and_in_its_own_way(tmp_path: Path) -> None:
    file = tmp_path / "how"
    command = (
        "import os, signal, sys\n"
        f"signal.signal(signal.SIGTERM, lambda *_: sys.exit(open({str(file)!r}, 'w').write('in good order') and 0))\n"
        "os.kill(os.getppid(), signal.SIGTERM)\n"
        "signal.pause()\n"
    )
    with pytest.raises(KeyboardInterrupt), early_end.by_signals():
        run_watched([sys.executable, "-c", command], tmp_path)
    assert file.read_text(encoding="utf-8") == "in good order"


def test_what_the_command_prints_can_stand_aside(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for aside in (False, True):
        run_watched([sys.executable, "-c", "print('hello')"], tmp_path, aside)
    assert capfd.readouterr() == ("hello\n", "hello\n")
