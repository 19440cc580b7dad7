"""The names of commands and options are a promise: a change here is a change for every user."""

import subprocess
import sys

import pytest
import typer
from torch.distributed.run import get_args_parser

from polyrhythm import __version__
from polyrhythm.cli.app import app
from polyrhythm.cli.jobs import check_early
from polyrhythm.runtime.launch.run_flags import make_parser

SURFACE = {
    "": {"--version", "--help", "--install-completion", "--show-completion"},
    "policies": {"--help"},
    "scenarios": {"--help"},
    "compare": {
        "scenario",
        "--policies",
        "--seeds",
        "--target",
        "--ui",
        "--json",
        "--report",
        "--trace",
        "--set",
        "--timing-only",
        "--jobs",
        "--on",
        "--time-scale",
        "--show",
        "--help",
    },
    "simulate": {
        "scenario",
        "--policy",
        "--seed",
        "--target",
        "--json",
        "--report",
        "--trace",
        "--timeline",
        "--perfetto",
        "--set",
        "--timing-only",
        "--show",
        "--help",
    },
    "diagnose": {
        "scenario",
        "--delta",
        "--layers",
        "--batches",
        "--seed",
        "--json",
        "--report",
        "--set",
        "--help",
    },
    "calibrate": {
        *("scenario", "--out", "--policies", "--seeds", "--epochs", "--time-scale", "--from", "--json", "--report"),
        *("--set", "--help"),
    },
    "doctor": {
        "traces",
        "--policies",
        "--json",
        "--report",
        "--keep",
        "--job",
        "--seconds",
        "--at",
        "--token",
        "--help",
    },
    "reproduce": {"name", "--quick", "--seeds", "--data", "--out", "--jobs", "--on", "--help"},
    "run": {"--help"},
    "ctl": {"job", "action", "argument", "--at", "--token", "--tls-ca", "--json", "--help"},
    "top": {"job", "--at", "--token", "--tls-ca", "--help"},
    "search": {
        *("scenario", "--policy", "--from", "--to", "--log", "--whole", "--baseline", "--settings", "--runs", "--beta"),
        *(
            "--target",
            "--walk",
            "--two-sided",
            "--error-rate",
            "--early",
            "--baseline-runs",
            "--reuse",
            "--algorithm-1",
            "--on",
            "--jobs",
        ),
        *("--time-scale", "--store", "--json", "--ui", "--set", "--help"),
    },
    "learn": {
        *("out", "--preset", "--families", "--pretraining", "--episodes", "--seed", "--data", "--jobs", "--log"),
        *("--resume", "--loss", "--on", "--ui", "--help"),
    },
    "search-cost": {
        *("runs", "--setup", "--candidates", "--beta", "--runs", "--draw", "--exclude", "--draws", "--seed"),
        *("--json", "--figure", "--help"),
    },
    "trace": {"--help"},
    "trace export": {"trace", "--perfetto", "--help"},
}


RUN = {
    *("--config", "--show-config", "--policy", "--on", "--worker-gpus", "--job", "--epochs", "--lr-convention"),
    *("--compensation", "--compress", "--full-duplex", "--averaging", "--averaged-state", "--delta-rate"),
    *("--on-divergence", "--shards", "--hang-after", "--max-coordinator-restarts", "--snapshot", "--standby"),
    *("--grace", "--trace", "--allow-policy-files", "--tls-cert", "--tls-key", "--tls-ca"),
    *("--checkpoint", "--every", "--keep", "--partition", "--injection"),
    "--group-size",
    *("--no-ui", "--ui", "--ui-host", "--ui-port", "--report", "--metrics-port", "--events", "--tensorboard"),
}
"""Flags of ``polyrhythm run`` beside torchrun's."""


def surface(command: object, name: str = "") -> dict[str, set[str]]:
    """Options and arguments of a command and of all below it."""
    context = typer.Context(command)  # type: ignore[arg-type]
    found = {name: {text for parameter in command.get_params(context) for text in parameter.opts}}  # type: ignore[attr-defined]
    for key, below in getattr(command, "commands", {}).items():
        found |= surface(below, f"{name} {key}".strip())
    return found


def test_commands_and_options_are_these() -> None:
    assert surface(typer.main.get_command(app)) == SURFACE


def test_flags_of_run_are_these() -> None:
    assert set(make_parser()._option_string_actions) - set(get_args_parser()._option_string_actions) == RUN


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)


def test_the_module_is_the_command() -> None:
    done = python("-m", "polyrhythm", "--version")
    assert (done.returncode, done.stdout) == (0, f"polyrhythm {__version__}\n")


def test_what_needs_no_model_loads_none() -> None:
    code = (
        "import sys\n"
        "from typer.testing import CliRunner\n"
        "from polyrhythm.cli.app import app\n"
        "for words in (['--help'], ['policies'], ['compare', '--help']):\n"
        "    assert CliRunner().invoke(app, words).exit_code == 0\n"
        "print(sorted({'torch', 'plotly', 'numpy', 'jinja2'} & set(sys.modules)))\n"
    )
    done = python("-c", code)
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize(
    ("flag", "value", "answer"),
    [
        ("--nproc-per-node", "1000000", "--nproc-per-node 1000000 is more than"),
        ("--nproc_per_node", "many", "--nproc-per-node must be a number of at least 1"),
        ("--shards", "1000000", "--shards 1000000 is more than"),
        ("--policy", "spp:3", "unknown policy 'spp': did you mean ssp?"),
    ],
)
def test_what_is_often_wrong_is_told_before_torch_is_loaded(flag: str, value: str, answer: str) -> None:
    code = (
        "import sys\n"
        "from polyrhythm.cli import main\n"
        f"sys.argv = ['polyrhythm', 'run', {flag!r}, {value!r}, {__file__!r}, '--policy', 'not ours']\n"
        "try:\n"
        "    main()\n"
        "finally:\n"
        "    print('torch' in sys.modules)\n"
    )
    done = python("-c", code)
    assert done.stdout == "False\n"
    assert answer in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("-m", "train", "--policy", "epsilon"),
        (__file__, "--policy", "epsilon", "--shards", "1000000"),
        ("--policy", "elastic:policy=(sync-switch)", __file__),
        ("--policy",),
        ("--shards", "x", __file__),
    ],
)
def test_what_is_not_ours_or_cannot_be_told_yet_is_left_alone(words: tuple[str, ...]) -> None:
    check_early(words)


def test_nothing_is_looked_for_in_what_was_imported_when_the_command_ends() -> None:
    """It would take Python a second where torch was imported."""
    code = (
        "import atexit, gc, sys\n"
        "atexit.register(lambda: print(gc.get_freeze_count() > len(sys.modules)))\n"
        "from polyrhythm.cli import main\n"
        "sys.argv = ['polyrhythm', '--version']\n"
        "main()\n"
    )
    assert python("-c", code).stdout == f"polyrhythm {__version__}\nTrue\n"
