"""The flags of ``polyrhythm run``, and what it takes to read them."""

import argparse
import ast
import subprocess
import sys

from torch.distributed.run import get_args_parser

from polyrhythm.runtime.launch.run_flags import imports, parser_from_source


def flags_of(parser: argparse.ArgumentParser) -> list[dict[str, object]]:
    """All that is known of each flag; of functions, which are made anew, the names."""
    return [
        {name: getattr(value, "__name__", value) for name, value in vars(action).items() if name != "container"}
        | {"kind": type(action).__name__}
        for action in parser._actions
    ]


def test_torchruns_flags_are_those_of_the_installed_torch() -> None:
    ours, theirs = parser_from_source(), get_args_parser()
    assert flags_of(ours) == flags_of(theirs)
    assert ours.format_help() == theirs.format_help()


def test_torchruns_variables_are_read_as_well() -> None:
    """Each has a default of its own there, as PET_NNODES."""
    code = (
        "import os, sys\n"
        "os.environ |= {'PET_NNODES': '3', 'PET_STANDALONE': '1'}\n"
        "from polyrhythm.runtime.launch.run_flags import parser_from_source\n"
        "read = parser_from_source().parse_args(['train.py'])\n"
        "sys.exit((read.nnodes, read.standalone) != ('3', True))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_launcher_reads_its_command_line_without_torch() -> None:
    """Two seconds and 200 MB, of which a launcher needs nothing."""
    code = (
        "import sys\n"
        "from polyrhythm.runtime.launch.torchrun import read_command\n"
        "read_command(['--nproc-per-node', '2', '--policy', 'asp', 'train.py'])\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_torch_takes_from_beside_a_module_is_not_looked_for_at_the_top() -> None:
    """There the user may have a module of that name."""
    assert imports(ast.parse("from .train import f\nfrom os import path as p\nimport re")) == {
        "p": ("os", "path"),
        "re": ("re", ""),
    }
