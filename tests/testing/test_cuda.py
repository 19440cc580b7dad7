"""A script for CUDA runs where there is none."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import torch

torch.cuda.set_device(0)
x = torch.zeros(2, device="cuda")
assert torch.arange(3, device=torch.device("cuda", 0)).device.type == "cpu"
assert x.new_ones(2, device="cuda").sum() == 2
generator = torch.Generator(device="cuda")
assert len(torch.randn(2, generator=generator, device="cuda:0")) == 2
assert isinstance(generator, torch.Generator) and isinstance(torch.default_generator, torch.Generator)
assert not isinstance(x, torch.Generator) and torch.Generator | None
assert torch.cuda.is_bf16_supported() and torch.cuda.get_device_properties(0).total_memory > 0
assert torch.cuda.get_device_capability()[0] == 8 and torch.cuda.max_memory_allocated() == 0
stream, start, end = torch.cuda.Stream(), torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
start.record()
with torch.cuda.stream(stream):
    x += 1
torch.cuda.current_stream().wait_stream(stream)
x.record_stream(stream)
end.record()
torch.cuda.synchronize()
assert start.elapsed_time(end) >= 0 and end.query()
torch.save({"x": x}, "x.pt")
assert torch.load("x.pt", map_location="cuda:0")["x"].tolist() == [1, 1]
print("done")
"""


def test_what_scripts_ask_of_a_gpu_is_there(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "-m", "polyrhythm.testing.cuda", "train.py"]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (run.stdout, run.returncode) == ("done\n", 0), run.stderr
