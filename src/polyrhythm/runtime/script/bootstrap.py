"""Runs a script in this process as ``python script`` would, after everything is in place."""

import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

import torch.distributed as dist

from polyrhythm.errors import BROKEN, BrokenPolicyError, DivergedError, PolyrhythmError, UsageError
from polyrhythm.runtime.launch.rendezvous import read_number
from polyrhythm.runtime.script.patches import install
from polyrhythm.runtime.script.script import AdaptedScript
from polyrhythm.runtime.wire.parent_death import tie_forks
from polyrhythm.training.divergence import DIVERGED

USAGE = 2
"""Exit code of a script that is refused."""


def main(arguments: Sequence[str]) -> int:
    """Run ``[-m] script [arguments]`` to its end."""
    tie_forks()
    script = AdaptedScript(read_number("RANK", 0), read_number("WORLD_SIZE", 1))
    install(script)
    try:
        execute(arguments)
    except BrokenPolicyError as error:
        script.close(type(error), error)
        return BROKEN
    except PolyrhythmError as error:
        print(f"polyrhythm: rank {os.environ.get('RANK', '0')}: {error}", file=sys.stderr)
        script.close(type(error), error)
        return DIVERGED if isinstance(error, DivergedError) else USAGE
    except BaseException as error:
        failed = not isinstance(error, SystemExit) or error.code not in (None, 0)
        script.close(*((type(error), error) if failed else ()))
        raise
    script.close()
    if dist.is_initialized():
        dist.destroy_process_group()
    return 0


def execute(arguments: Sequence[str]) -> None:
    """The script in place of this module: same ``__main__``, arguments and import path as without us."""
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        sys.path[0] = str(Path.cwd())
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    path = Path(arguments[0])
    if not path.exists():
        raise UsageError(f"cannot find the script {path}")
    sys.argv = list(arguments)
    sys.path[0] = str(path.resolve().parent)
    runpy.run_path(str(path), run_name="__main__")
