"""The flags of ``polyrhythm run``, and what it takes to read them."""

import argparse
import ast
import math
import subprocess
import sys

import pytest
from torch.distributed.run import get_args_parser

from polyrhythm.errors import UsageError
from polyrhythm.runtime.launch import run_flags
from polyrhythm.runtime.launch.run_flags import defined, from_call, imports, make_parser, parser_from_source
from polyrhythm.runtime.launch.torchrun import read_command


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


@pytest.mark.parametrize(
    ("flag", "words"),
    [("max_restarts", "workers of this host"), ("master_port", "any free one"), ("policy", "sync-switch")],
)
def test_the_help_says_what_a_flag_does_here(flag: str, words: str) -> None:
    (action,) = (action for action in make_parser()._actions if action.dest == flag)
    assert words in (action.help or "")


def test_what_completes_torchrun_is_no_flag_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = argparse.ArgumentParser()
    theirs.add_argument("--print-completion", "--print_completion")
    theirs.add_argument("training_script")
    monkeypatch.setattr(run_flags, "torchrun_parser", lambda: theirs)
    with pytest.raises(UsageError, match=r"^unknown flag --print-completion"):
        make_parser().parse_args(["--print-completion", "zsh", "train.py"])


def test_what_a_later_torchrun_may_have_is_not_taken_in_silence() -> None:
    parser = make_parser()
    parser.add_argument("--colour")
    with pytest.raises(UsageError, match=r"^--colour red has no meaning here: it is torchrun's since a later release"):
        from_call(parser, ["--colour", "red"], {})
    assert "colour" not in from_call(parser, [], {}).chosen


VARIABLES = """
import os, sys
os.environ |= {"PET_NNODES": "3", "PET_STANDALONE": "1"}
from polyrhythm.runtime.launch.run_flags import parser_from_source
read = parser_from_source().parse_args(["train.py"])
sys.exit((read.nnodes, read.standalone) != ("3", True))
"""
"""Each flag has a default of its own there, as PET_NNODES."""

WITHOUT_TORCH = """
import sys
from polyrhythm.runtime.launch.torchrun import read_command
read_command(["--nproc-per-node", "2", "--policy", "asp", "train.py"])
sys.exit("torch" in sys.modules)
"""
"""Two seconds and 200 MB, of which a launcher needs nothing."""


@pytest.mark.parametrize("code", [VARIABLES, WITHOUT_TORCH], ids=["torchrun's variables", "without torch"])
def test_a_launcher_reads_its_command_line_with(code: str) -> None:
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_what_a_function_uses_of_its_own_module_comes_with_it() -> None:
    source = "import math\nclass Base:\n    root = math.tau\nclass Kind(Base): ...\ndef make():\n    return Kind().root"
    assert defined(ast.parse(source), "here.py", "make")() == math.tau


def test_what_torch_takes_from_beside_a_module_is_not_looked_for_at_the_top() -> None:
    """There the user may have a module of that name."""
    assert imports(ast.parse("from .train import f\nfrom os import path as p\nimport re")) == {
        "p": ("os", "path"),
        "re": ("re", ""),
    }


@pytest.mark.parametrize("name", ["--rdzv-id", "--rdzv_id", "--job"])
def test_an_id_that_is_given_is_the_jobs_on_one_host_too(name: str) -> None:
    assert read_command([name, "fruit", "a.py"]).config.job == "fruit"


def test_jobs_without_an_id_are_told_apart() -> None:
    ids = {read_command([*words, "a.py"]).config.job for words in ([], [], ["--rdzv-id", "none"])}
    assert len(ids) == 3
    assert "none" not in ids
