"""Where the settings of a job come from, and which one holds.

From the weakest to the strongest:

1. the default;
2. the arguments of `polyrhythm.session` in the script;
3. the environment: ``POLYRHYTHM_POLICY`` and so on for each flag of ours, torchrun's ``PET_NNODES`` and so on for each
   of its own;
4. the job file, ``polyrhythm run --config job.toml``;
5. the flags of ``polyrhythm run``.

The nearer to the call, the stronger: whoever types a command can change what the script and the site have set. Where
two of the places 2 to 5 differ, one line at the start says which one holds.
"""

import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeAlias

import msgspec

from polyrhythm.core import Policy
from polyrhythm.errors import PolyrhythmError, UsageError
from polyrhythm.runtime.wire.job_config import (
    BY_SCRIPT,
    INTERNAL,
    TYPES,
    Given,
    JobConfig,
    TorchrunFlags,
    canonical,
    converted,
    make_config,
)
from polyrhythm.runtime.wire.setting_values import SESSION

ConfigLayer: TypeAlias = Mapping[str, Given]
"""What one place has chosen, by the name of the setting."""

LOOP_FROM = "loop_from"
"""Argument beside the epochs of an unmodified script: what its loop calls the first of them."""

HANDED_ON = "POLYRHYTHM_JOB_CONFIG"
"""Environment variable with the config as JSON, for workers that somebody else has started."""

PILOT = "POLYRHYTHM_PILOT"
"""Environment variable of a run of a search."""

CHECKPOINTS = ("checkpoint", "every", "keep")
"""Settings that a run of a search does without: it would go on from what another one has trained."""

OURS = "POLYRHYTHM_"

LIKE = 0.75
"""How much alike, of 1, two names are of which one is taken for the other; PORT and PROT are so."""

BESIDE = tuple(f"{OURS}{name}" for name in ("TOKEN", "PORT", "CACHE", "ADDRESS", "LINK_BYTES_PER_S"))
"""Environment variables that somebody may set and that are no setting."""

OWN = (
    *(HANDED_ON, PILOT),
    *(f"{OURS}{name}" for name in ("COORDINATOR", "GROUP", "RUN_ID", "JOINED", "STATUSES", "REMOVED", "ENDING")),
    *(f"{OURS}{name}" for name in ("HOSTS", "FORKS", "SAID", "WATCH")),
)
"""Those that processes of ours set for others."""

VARIABLES = {
    name: f"{'PET_' if name in TorchrunFlags.__struct_fields__ else OURS}{name.upper()}"
    for name in TYPES
    if name not in INTERNAL
}
"""Environment variable of each setting."""


DATA = ("partition", "injection")
"""Settings that a worker must know before it meets the coordinator: a script reads its first mini-batches by them."""

EARLY = (HANDED_ON, *(VARIABLES[name] for name in DATA))
"""Environment variables that tell it."""


class Choice(NamedTuple):
    """What holds, and a line for each setting that was given and does not."""

    chosen: dict[str, Given]
    overruled: tuple[str, ...]


def session_arguments(**arguments: Any) -> dict[str, Any]:
    """The arguments of a session that the script gives, checked; those that this run heeds.

    >>> session_arguments(policy="ssp:s=3", epochs=None)
    {'policy': 'ssp:3'}

    Raises:
        PolyrhythmError: for an impossible value.
    """
    plain = {name: value.spec if isinstance(value, Policy) else value for name, value in arguments.items()}
    given = {name: converted(name, value, "") for name, value in plain.items() if value is not None}
    config, unheeded = JobConfig(**given), CHECKPOINTS if PILOT in os.environ else ()
    return {name: canonical(name, getattr(config, name)) for name in given if name not in unheeded}


def from_environment(environment: Mapping[str, str]) -> dict[str, Given]:
    """What the environment has chosen; an empty variable is none.

    >>> from_environment({"POLYRHYTHM_EPOCHS": "3", "POLYRHYTHM_POLICY": ""})
    {'epochs': Given(value=3, where='POLYRHYTHM_EPOCHS')}

    Raises:
        PolyrhythmError: for a value of the wrong type.
    """
    texts = {name: environment.get(variable, "") for name, variable in VARIABLES.items()}
    return {
        name: Given(converted(name, text, VARIABLES[name], text=True), VARIABLES[name])
        for name, text in texts.items()
        if text
    }


def misspelt(environment: Mapping[str, str], others: Iterable[str] = ()) -> tuple[str, ...]:
    """A line for each variable that nearly has the name of one that may be set, and so does nothing.

    Others may be meant for another version, or for the script.

    Args:
        environment: of this process.
        others: variables that may be set, beside those of the settings.

    >>> misspelt({"POLYRHYTHM_POLCY": "asp", "POLYRHYTHM_PORT": "29400", "POLYRHYTHM_POLICY": "asp"})
    ('POLYRHYTHM_POLCY does nothing: did you mean POLYRHYTHM_POLICY?',)
    """
    ours = [name for name in (*VARIABLES.values(), *BESIDE, *others) if name.startswith(OURS)]
    prefix, unknown = len(OURS), [name for name in environment if name.startswith(OURS) and name not in (*ours, *OWN)]
    near = {name: get_close_matches(name[prefix:], [each[prefix:] for each in ours], 1, LIKE) for name in unknown}
    return tuple(f"{name} does nothing: did you mean {OURS}{found[0]}?" for name, found in near.items() if found)


def combined(*layers: ConfigLayer) -> Choice:
    """The layers as one, the weakest first.

    >>> chosen, lines = combined({"policy": Given("bsp", "job.toml")}, {"policy": Given("asp", "--policy")})
    >>> chosen["policy"].value, *lines
    ('asp', 'policy asp of --policy holds; bsp of job.toml is overruled')
    """
    chosen = {name: given for layer in layers for name, given in layer.items()}
    lines = []
    for name, holds in chosen.items():
        others = [layer[name] for layer in layers if name in layer]
        beaten = [given for given in others if not same(name, given.value, holds.value)]
        if beaten:
            listed = " and ".join(f"{value} of {where}" for value, where in beaten)
            verb = "is" if len(beaten) == 1 else "are"
            lines.append(f"{name} {holds.value} of {holds.where} holds; {listed} {verb} overruled")
    return Choice(chosen, tuple(lines))


def same(name: str, first: Any, second: Any) -> bool:
    """Whether two values mean the same, also where each is no number.

    >>> same("policy", "ssp:3", "ssp:s=3"), same("hang_after", float("nan"), float("nan"))
    (True, True)
    """
    with suppress(PolyrhythmError):  # said where the value is used
        first, second = canonical(name, first), canonical(name, second)
    return bool(first == second or (first != first and second != second))


def with_session(config: JobConfig, arguments: Mapping[str, Any]) -> tuple[JobConfig, tuple[str, ...]]:
    """The config with the arguments of the script's session where nothing stronger was given, and what is overruled.

    >>> config, lines = with_session(JobConfig(given={"policy": "--policy"}), {"policy": "asp", "epochs": 3})
    >>> config.policy, config.epochs, lines
    ('bsp', 3, ("policy bsp of --policy holds; asp of the script's session is overruled",))

    Raises:
        PolyrhythmError: as `JobConfig`.
    """
    given = {name: value for name, value in arguments.items() if name in BY_SCRIPT}
    asked = {name: Given(converted(name, value, SESSION), SESSION) for name, value in given.items()}
    stronger = {name: Given(getattr(config, name), where) for name, where in config.given.items()}
    chosen, lines = combined(asked, {name: given for name, given in stronger.items() if name in BY_SCRIPT})
    where = {name: given.where for name, given in chosen.items()}
    values = {name: given.value for name, given in chosen.items()}
    return msgspec.structs.replace(config, **values, given={**config.given, **where}), lines


def epochs_of_job(arguments: Mapping[str, Any], counted_from: int | None) -> dict[str, Any]:
    """What a script says of itself, with all epochs of its job where its loop has those that are left.

    >>> epochs_of_job({"epochs": 8, "loop_from": 2}, 0), epochs_of_job({"epochs": 8, "loop_from": 2}, None)
    ({'epochs': 10}, {'epochs': 8})

    Args:
        arguments: as they have come.
        counted_from: what the loop calls the job's epoch 0; None if the job has no checkpoint that says it.
    """
    said = {name: value for name, value in arguments.items() if name != LOOP_FROM}
    if counted_from is not None and LOOP_FROM in arguments:
        said["epochs"] += max(0, arguments[LOOP_FROM] - counted_from)
    return said


def told_later(arguments: Mapping[str, Any], config: JobConfig) -> dict[str, Any]:
    """Arguments that only a coordinator understands, as it has read the checkpoint.

    >>> told_later({"epochs": 8, "loop_from": 2}, JobConfig(checkpoint="kept")), told_later({"epochs": 8}, JobConfig())
    ({'epochs': 8, 'loop_from': 2}, {})
    """
    return dict(arguments) if config.checkpoint is not None and LOOP_FROM in arguments else {}


class Completion:
    """Completes the config of a job that was started before its script has said anything.

    Args:
        config: from what is stronger than the script.
        tell: is given a line for what is overruled.
    """

    def __init__(self, config: JobConfig, tell: Callable[[str], None]) -> None:
        self.config, self._tell = config, tell
        self._first: tuple[int, Mapping[str, Any]] | None = None

    def heed(self, rank: int, arguments: Mapping[str, Any]) -> bool:
        """A worker's session has these arguments; whether they have completed `config`, as those of the first do."""
        if self._first is None:
            self.config, lines = with_session(self.config, arguments)
            self._first = rank, arguments
            for line in (*lines, *idle(self.config)):
                self._tell(line)
            return True
        first, theirs = self._first
        if arguments != theirs:
            self._tell(f"rank {rank} gives its session other arguments than rank {first}, whose arguments hold")
        return False


def idle(config: JobConfig) -> tuple[str, ...]:
    """A line for each setting that was given and does nothing, because another one was not.

    >>> idle(JobConfig(every="5m", given={"every": "--every"}))
    ('--every 5m has no effect without a folder for checkpoints; give --checkpoint DIR, too',)
    """
    given = [name for name in ("every", "keep") if name in config.given and config.checkpoint is None]
    return tuple(
        f"{config.label(name)} {getattr(config, name)} has no effect without a folder for checkpoints; give "
        "--checkpoint DIR, too"
        for name in given
    )


def told_early(config: JobConfig) -> dict[str, str]:
    """What a launcher puts into the environment of its workers about their data.

    >>> told_early(JobConfig(partition="seldp", given={"partition": "--partition"}))
    {'POLYRHYTHM_PARTITION': 'seldp'}
    """
    return {VARIABLES[name]: getattr(config, name) for name in DATA if name in config.given}


def handed_on(environment: Mapping[str, str]) -> JobConfig:
    """The config of a worker that somebody else has started: from ``polyrhythm run`` around it, or the environment.

    Raises:
        PolyrhythmError: for a variable that cannot be read.
    """
    if HANDED_ON not in environment:
        return make_config(from_environment(environment))
    try:
        return msgspec.json.decode(environment[HANDED_ON].encode(), type=JobConfig)
    except msgspec.DecodeError as error:
        raise UsageError(f"{HANDED_ON} is not what polyrhythm run has set: {error}; unset it") from None
