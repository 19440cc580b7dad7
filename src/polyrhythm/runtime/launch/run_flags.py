"""The command line of ``polyrhythm run``: torchrun's flags and ours, up to the script."""

import argparse
import ast
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, get_args

import msgspec

from polyrhythm.errors import UsageError
from polyrhythm.runtime.launch.job_file import (
    IDLE,
    KEYS,
    REFUSED,
    SEARCH_VARIABLES,
    SEARCHED,
    SYNC_SWITCH,
    check_terms,
    is_searched,
    read_job_file,
    search_terms,
)
from polyrhythm.runtime.wire.config_sources import Choice, ConfigLayer, combined, from_environment, misspelt
from polyrhythm.runtime.wire.job_config import CHOICES, Given, JobConfig
from polyrhythm.runtime.wire.setting_values import label

NEAR = 0.7
"""Least likeness of two flags, without their dashes, of which one may have been meant for the other."""

ABOUT_THE_CALL = ("config", "show_config")
"""Flags of ours that are no setting of a job."""

COMPLETION = "print_completion"
"""Of torchrun since torch 2.14: where it is read, it prints a completion script for the command torchrun."""

UNHEARD_OF = "it is torchrun's since a later release of torch than this has seen"
"""Why a flag is refused that no table has: it would do nothing."""


class Expanded(NamedTuple):
    """Flags that say all, a line for each setting about which two places differed, and what was chosen where."""

    flags: list[str]
    overruled: tuple[str, ...]
    chosen: Mapping[str, Given]

    def label(self, name: str) -> str:
        """How messages call a setting."""
        return label(name, self.chosen[name].where) if name in self.chosen else flag_of(name)


HELP: dict[str, tuple[str | None, str]] = {
    "policy": ("SPEC", "first policy, as in ssp:3; with sync-switch, --help has the flags of a search"),
    "on": (None, "where to start the workers"),
    "worker_gpus": ("N", "GPUs of each worker, with --on ray"),
    "job": ("NAME", "id of the job, for polyrhythm ctl"),
    "group_size": ("N", "processes of a worker, over which FSDP2 shards its model"),
    "epochs": (None, "epochs that the script makes, for policies with shares"),
    "lr_convention": (None, "see the guide to real jobs"),
    "compensation": ("SPEC", "what is done about staleness"),
    "compress": ("SPEC", "what is sent, as in int8 or topk:0.01"),
    "full_duplex": (None, "pull while pushing, between hosts; see the guide"),
    "partition": ("SPEC", "who reads which samples, as in seldp"),
    "injection": ("A,B", "data injection: its shares alpha and beta"),
    "averaging": (None, "where averages of replicas are summed up"),
    "averaged_state": (None, "states of averaged replicas"),
    "delta_rate": ("R", "rate of deltas without an optimizer"),
    "on_divergence": (None, "when the loss is nan or explodes"),
    "shards": ("N", "parameter servers"),
    "hang_after": ("S", "silence of a worker that is a hang"),
    "max_coordinator_restarts": ("N", "how often one follows that has died"),
    "standby": ("HOST[:PORT]", "where the job goes on if the first host is lost"),
    "snapshot": ("TIME", "between two copies of what servers have"),
    "grace": ("S", "how long workers may take to end after SIGTERM"),
    "checkpoint": ("DIR", "keep checkpoints here, and go on from the newest"),
    "every": ("TIME", "between two checkpoints, as in 90s, 5m or 1h"),
    "keep": ("K", "checkpoints that stay"),
    "trace": ("DIR", "keep a trace of every phase"),
    "ui": (
        None,
        "a page about the job while it runs, with controls; on a terminal there is one unless --no-ui is given",
    ),
    "ui_host": ("HOST", "where page and metrics listen"),
    "ui_port": ("PORT", "of the page; 0 is any that is free"),
    "report": ("FILE.html", "keep the page as it is at the end of the job"),
    "metrics_port": ("PORT", "metrics for Prometheus; 0 is any free port"),
    "events": ("FILE", "write what happens to the job as JSON lines"),
    "tensorboard": ("DIR", "write loss, throughput and the like for TensorBoard"),
    "tls_cert": ("FILE", "of this host: TLS between hosts; see the guide"),
    "tls_key": ("FILE", "of that certificate"),
    "tls_ca": ("FILE", "of the authority behind those of all hosts"),
    "allow_policy_files": (None, "let polyrhythm ctl switch to a file's policy"),
}
"""Of each setting of ours: what stands for its value, and a few words; all else of its flag is the setting's own."""


OTHERWISE = {
    "start_method": "spawn: no worker is forked from a process that has imported torch",
    "max_restarts": "how often workers of this host that have died are started again, in all",
    "master_port": "MASTER_PORT of a job on one host, any free one if not given; on several the coordinator's port",
}
"""What torchrun's flags do here, where it is something else."""


class Once(argparse.Action):
    """A flag of which a second one would hide the first, with all that it says."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, flag: str | None = None) -> None:
        if (before := getattr(namespace, self.dest, None)) is not None:
            raise UsageError(f"{flag} is given twice, as {before} and as {values}; give one")
        setattr(namespace, self.dest, values)


def make_parser() -> argparse.ArgumentParser:
    parser = torchrun_parser()
    parser.prog = "polyrhythm run"
    for action in [*parser._actions]:
        action.help = OTHERWISE.get(action.dest, action.help)
        if action.dest == "start_method":
            action.default = None
        elif action.dest == COMPLETION:
            parser._handle_conflict_resolve(action, [(flag, action) for flag in action.option_strings])  # takes it out
    parser.error = partial(refuse, parser)  # type: ignore[method-assign]
    parser.description = "Start the workers of a job on this host under a synchronization policy."
    ours = parser.add_argument_group("polyrhythm")
    ours.add_argument("--config", action=Once, metavar="FILE", help="job file: TOML, with a key for every flag")
    ours.add_argument("--show-config", action="store_true", help="print all settings and where each comes from; stop")
    for field in msgspec.structs.fields(JobConfig):
        if field.name in HELP:
            metavar, words = HELP[field.name]
            ours.add_argument(flag_of(field.name), default=field.default, help=words, **form(field, metavar))
    show_ours_first(parser)
    return parser


def torchrun_parser() -> argparse.ArgumentParser:
    """That of the installed torch. A launcher needs nothing else of it, and its import takes two seconds and 200 MB."""
    if "torch" not in sys.modules:
        with suppress(Exception):  # another torch may have another source; what it imports has the parser in any case
            return parser_from_source()
    from torch.distributed.run import get_args_parser

    return get_args_parser()


def parser_from_source() -> argparse.ArgumentParser:
    made: argparse.ArgumentParser = definition("torch.distributed.run", "get_args_parser")()
    return made


def definition(module: str, name: str) -> Any:
    """A function or class of torch as its source has it, without an import of torch.

    What the source takes from other modules of torch is defined alike.
    """
    root = importlib.util.find_spec(module.partition(".")[0])
    assert root is not None
    path = Path(root.origin or "").parent.joinpath(*module.split(".")[1:]).with_suffix(".py")
    return defined(ast.parse(path.read_text(encoding="utf-8")), str(path), name)


def defined(tree: ast.Module, path: str, name: str) -> Any:
    """The same, of a module's source, with what else of it the function or class uses."""
    own = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    used = {node.id for node in ast.walk(own[name]) if isinstance(node, ast.Name)} - {name}
    known = {bound: bring(*source) for bound, source in imports(tree).items() if bound in used}
    known |= {each: defined(tree, path, each) for each in used & own.keys()}
    exec(compile(ast.Module([own[name]], []), path, "exec"), known)
    return known[name]


def imports(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Module and name, if one is taken from it, of what a module imports at its top, by the name that it has there."""
    whole = [alias for node in tree.body if isinstance(node, ast.Import) for alias in node.names]
    froms = [node for node in tree.body if isinstance(node, ast.ImportFrom) and not node.level]
    parts = [(node.module, alias) for node in froms for alias in node.names]
    taken = {alias.asname or alias.name: (module or "", alias.name) for module, alias in parts}
    return {alias.asname or alias.name: (alias.name, "") for alias in whole} | taken


def bring(module: str, name: str) -> Any:
    if name and module.partition(".")[0] == "torch":
        return definition(module, name)
    return getattr(import_module(module), name) if name else import_module(module)


def form(field: msgspec.structs.FieldInfo, metavar: str | None) -> dict[str, Any]:
    """How the value of a setting is written on the command line."""
    if field.name in CHOICES:
        return {"choices": CHOICES[field.name]}
    if field.type is bool:
        return {"action": argparse.BooleanOptionalAction if field.name == "ui" else "store_true"}
    kinds = (field.type, *get_args(field.type))
    return {"type": next(kind for kind in (int, float, str) if kind in kinds), "metavar": metavar}


def show_ours_first(parser: argparse.ArgumentParser) -> None:
    """In the help: what is new to those who know torchrun."""
    groups = parser._action_groups
    groups.insert(0, groups.pop())
    groups[0].title = "flags of polyrhythm"
    parser._optionals.title = "flags of torchrun"
    parser.usage = "polyrhythm run [--policy SPEC] [--nproc-per-node N] [flags] SCRIPT [arguments of the script]"


def refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
    """In place of argparse's own answer, which prints all flags first.

    Raises:
        UsageError: always; an unknown flag comes with the nearest known one.
    """
    known, _, words = message.partition("unrecognized arguments: ")
    unknown = words.split(" ")[0].partition("=")[0]
    if known or not unknown:
        raise UsageError(f"{message}; see polyrhythm run --help")
    if unknown.strip("-").replace("-", "_") in SYNC_SWITCH:
        raise UsageError(f"{unknown} goes with --policy {SEARCHED}, and the policy is another one")
    near = nearest(parser, unknown)
    raise UsageError(f"unknown flag {unknown}: {f'did you mean {near}?' if near else 'see polyrhythm run --help'}")


def nearest(parser: argparse.ArgumentParser, unknown: str) -> str:
    """The known flag that somebody may have meant, ours before torchrun's; nothing if none is near.

    >>> [nearest(make_parser(), flag) for flag in ("--polcy", "--nproc-per-nod", "--patience")]
    ['--policy', '--nproc-per-node', '']
    """
    for group in parser._action_groups:
        names = [flag[2:] for action in group._group_actions for flag in action.option_strings if flag[:2] == "--"]
        if near := get_close_matches(unknown.lstrip("-"), names, n=1, cutoff=NEAR):
            return f"--{near[0]}"
    return ""


def split_at_script(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our flags, and the script with its own: nothing after the script is looked at.

    A flag may be cut short, as under torchrun, as long as it is clear which one is meant; what comes back has it whole.

    >>> split_at_script(make_parser(), ["--policy", "asp", "--standal", "train.py", "--n", "5"])
    (['--policy', 'asp', '--standalone'], ['train.py', '--n', '5'])
    """
    arguments, position = [*arguments], 0
    while position < len(arguments):
        word = arguments[position]
        if not word.startswith("-"):
            return arguments[:position], arguments[position:]
        arguments[position] = word = whole(parser, word)
        action = parser._option_string_actions.get(word.partition("=")[0])
        takes_value = action is not None and action.nargs != 0 and "=" not in word
        position += 2 if takes_value else 1
    if {"-h", "--help"} & set(arguments):
        parser.parse_args(["--help"])  # which does not come back
    raise UsageError("no script given; write polyrhythm run --policy asp train.py")


def whole(parser: argparse.ArgumentParser, word: str) -> str:
    """A flag as it is called, if the word is one or the beginning of one only.

    >>> whole(make_parser(), "--nproc_per=2"), whole(make_parser(), "--tls"), whole(make_parser(), "-m")
    ('--nproc-per-node=2', '--tls', '-m')
    """
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    name, known = name.replace("_", "-"), parser._option_string_actions
    meant = {id(action): flag for flag, action in known.items() if flag.startswith(name) and "_" not in flag}
    if name in known or len(meant) != 1:
        return f"{name if name in known else word.partition('=')[0]}{equals}{value}"
    return f"{next(iter(meant.values()))}{equals}{value}"


def given_flags(parser: argparse.ArgumentParser, flags: Sequence[str]) -> dict[str, Any]:
    """Values of the flags that were given, by name; those at their default too.

    >>> given_flags(make_parser(), ["--policy", "bsp", "--nnodes=2"])
    {'nnodes': '2', 'policy': 'bsp'}
    """
    unset = argparse.Namespace(**{action.dest: None for action in parser._actions})
    read = vars(parser.parse_args([*flags, "script"], unset))
    named = {action.dest for action in parser._actions if action.option_strings}
    return {name: value for name, value in read.items() if name in named and value is not None}


def as_flags(values: Mapping[str, Any]) -> list[str]:
    """A command line that gives these values.

    >>> as_flags({"on_divergence": "end", "module": True, "standalone": False, "data": ["a", "b"]})
    ['--on-divergence=end', '--module', '--data=a', '--data=b']
    """
    words: list[str] = []
    for name, value in values.items():
        flag = flag_of(name)
        if isinstance(value, bool):
            words += [flag] if value else ["--no-ui"] if name == "ui" else []
        else:
            words += [f"{flag}={entry}" for entry in (value if isinstance(value, list) else [value])]
    return words


def flag_of(name: str) -> str:
    """The flag of a setting.

    >>> flag_of("on_divergence")
    '--on-divergence'
    """
    return "--" + name.replace("_", "-")


def from_call(parser: argparse.ArgumentParser, flags: Sequence[str], environment: Mapping[str, str]) -> Choice:
    """What environment, job file and flags have chosen, before the script says anything."""
    given = given_flags(parser, flags)
    path: str = given.get("config", "")
    if "config" in given and not path:
        raise UsageError("--config has no value; give one or leave it out")
    ours = {name: Given(value, flag_of(name)) for name, value in given.items() if name not in ABOUT_THE_CALL}
    in_file = {name: Given(value, path) for name, value in (read_job_file(path) if path else {}).items()}
    for layer in (in_file, ours):
        refuse_meaningless(parser, layer)
    choice = combined({**from_environment(environment), **search_terms(environment)}, in_file, ours)
    if is_searched(choice.chosen):
        check_terms(choice.chosen)
    return choice._replace(overruled=(*choice.overruled, *misspelt(environment, SEARCH_VARIABLES.values())))


def expanded(parser: argparse.ArgumentParser, flags: Sequence[str]) -> Expanded:
    """The flags with those of the job file and the environment as flags in front, for a call in another place."""
    choice = from_call(parser, flags, os.environ)
    idle = {*IDLE, *REFUSED, *(() if is_searched(choice.chosen) else SYNC_SWITCH)}
    own, known = given_flags(parser, flags), {action.dest for action in parser._actions} - idle
    others = {name: given.value for name, given in choice.chosen.items() if name in known - own.keys()}
    return Expanded([*as_flags(others), *without(flags, ("--config",))], choice.overruled, choice.chosen)


def without(flags: Sequence[str], names: Sequence[str]) -> list[str]:
    """The flags without those of these names and their values.

    >>> without(["--on", "ray", "--policy", "asp", "--worker-gpus=1"], ["--on", "--worker-gpus"])
    ['--policy', 'asp']
    """
    kept: list[str] = []
    value_follows = False
    for word in flags:
        if value_follows:
            value_follows = False
        elif word.partition("=")[0] in names:
            value_follows = "=" not in word
        else:
            kept.append(word)
    return kept


def refuse_meaningless(parser: argparse.ArgumentParser, layer: ConfigLayer) -> None:
    """No setting of torchrun that would do nothing here, but at its default, and none of ours without a value."""
    for name, (value, where) in layer.items():
        if (name in HELP or name in SYNC_SWITCH) and value == "":
            raise UsageError(f"{label(name, where)} has no value; give one or leave it out")
        why = REFUSED.get(name, "" if name in (*KEYS, *ABOUT_THE_CALL) else UNHEARD_OF)
        if why and value != parser.get_default(name):
            flag = where if value is True else f"{where} {value}"
            shown = flag if where == flag_of(name) else f"{name} = {value} in {where}"
            raise UsageError(f"{shown} has no meaning here: {why}; leave it out")
