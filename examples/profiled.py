"""Run a script for torchrun under torch.profiler, and keep one file a rank; the script itself is not changed.

torchrun --standalone --nproc-per-node 4 examples/profiled.py profiles examples/train_ddp.py --epochs 3 --repeat 4
polyrhythm doctor profiles
"""

import runpy
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile


def main(folder: Path, script: list[str]) -> None:
    """The profiler runs from the first group's beginning to its end, so that the files say which rank they are of."""
    folder.mkdir(parents=True, exist_ok=True)
    profiler = profile(activities=[ProfilerActivity.CPU])
    init, destroy = dist.init_process_group, dist.destroy_process_group

    def begin(*args: Any, **kwargs: Any) -> None:
        init(*args, **kwargs)
        profiler.start()

    def end(*args: Any) -> None:
        profiler.stop()
        profiler.export_chrome_trace(str(folder / f"rank{dist.get_rank()}.json"))
        destroy(*args)

    vars(dist).update(init_process_group=begin, destroy_process_group=end)
    sys.argv = script
    runpy.run_path(script[0], run_name="__main__")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
