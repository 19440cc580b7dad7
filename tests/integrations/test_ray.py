"""``polyrhythm run --on ray`` on a Ray cluster of this host."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

SCRIPT = """
import os, pathlib
import torch
import polyrhythm

model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.ones(40, 3), torch.ones(40, 1))
with polyrhythm.session(model, optimizer) as session:
    for x, y in session.loader(data, batch_size=2):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    rank = os.environ["RANK"]
    pathlib.Path(f"rank-{rank}").write_text(f"{session.policy} {session.metrics['samples']} {os.environ['GROUP_RANK']}")
"""


@pytest.fixture
def cluster() -> Iterator[str]:
    """The address of a cluster of two cores."""
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray.get_runtime_context().gcs_address
    ray.shutdown()


def run(folder: Path, address: str, *words: str) -> "subprocess.CompletedProcess[str]":
    (folder / "train.py").write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "-m", "polyrhythm", "run", "--on", "ray", *words, "train.py"]
    environment = {**os.environ, "RAY_ADDRESS": address, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.parametrize("shape", [("--nnodes=2", "--nproc-per-node=1"), ("--nproc-per-node=2",)])
def test_workers_are_placed_and_share_the_work(tmp_path: Path, cluster: str, shape: tuple[str, ...]) -> None:
    done = run(tmp_path, cluster, *shape, "--policy", "asp")
    assert done.returncode == 0, done.stdout + done.stderr
    told = [(tmp_path / f"rank-{rank}").read_text(encoding="utf-8").split() for rank in range(2)]
    assert [policy for policy, _, _ in told] == ["asp", "asp"]
    assert sum(int(samples) for _, samples, _ in told) == 40
    assert [host for _, _, host in told] == (["0", "1"] if len(shape) == 2 else ["0", "0"])


def test_a_job_that_has_no_room_is_one_line(tmp_path: Path, cluster: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from polyrhythm.errors import PolyrhythmError
    from polyrhythm.runtime.launch import ray as on_ray

    monkeypatch.setattr(on_ray, "PLACED_S", 1.0)
    monkeypatch.setenv("RAY_ADDRESS", cluster)
    with pytest.raises(PolyrhythmError, match="has no room for 1 times 20 CPU"):
        on_ray.launch_anywhere(["--on", "ray", "--nproc-per-node", "20", "--policy", "asp", "train.py"])
