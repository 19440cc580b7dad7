"""All settings of a job in one struct: what may stand in each, and which place a value comes from.

`polyrhythm.runtime.wire.config_sources` builds it; it travels whole to the coordinator and to the workers.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args, get_origin

import msgspec

from polyrhythm.core import Policy
from polyrhythm.core.placement import runtime_placement
from polyrhythm.errors import UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.training.compensation import parse_compensation
from polyrhythm.training.compression import parse_compression
from polyrhythm.training.config import LrConvention, StateTreatment
from polyrhythm.training.divergence import EXPLODED, OnDivergence

Averaging: TypeAlias = Literal["ring", "server"]
"""Where averages of replicas are summed up: on the way from worker to worker, or by the servers."""

INTERNAL = frozenset(
    {"token", "workers", "listen", "rates", "divergence", "heartbeat_s", "patience_s", "figures", "given"}
)
"""Fields without a flag: they follow from the others, or only a program sets them."""

BY_SCRIPT = ("policy", "epochs", "compress", "on_divergence")
"""Fields that an argument of `polyrhythm.session` can set."""

KINDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
"""How messages call a type."""


class TorchrunFlags(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The flags of torchrun that mean something here, with torchrun's names and defaults.

    Args:
        nnodes: hosts of the job.
        nproc_per_node: workers on each host: a number, auto, cpu or gpu.
        node_rank: of this host, from 0.
        rdzv_backend: static or c10d; the coordinator is the meeting point in both cases.
        rdzv_endpoint: HOST or HOST:PORT of host 0.
        rdzv_id: id of a job on several hosts that has no `JobConfig.job`.
        master_addr: host 0, in place of `rdzv_endpoint`.
        master_port: its port.
        standalone: says that there is one host, as is the default.
        module: whether the script is the name of a module.
        no_python: whether the script is a program of its own.
    """

    nnodes: str = "1:1"
    nproc_per_node: str = "1"
    node_rank: int = 0
    rdzv_backend: str = "static"
    rdzv_endpoint: str = ""
    rdzv_id: str = "none"
    master_addr: str = "127.0.0.1"
    master_port: int | None = None
    standalone: bool = False
    module: bool = False
    no_python: bool = False


class JobConfig(TorchrunFlags, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Every setting of a job; each field outside `INTERNAL` has a flag of ``polyrhythm run`` of the same name.

    Args:
        policy: spec of the first policy.
        job: id of the job; names its socket on this host. None given: a random one.
        on: where the workers are started: here, or on a Ray cluster.
        worker_gpus: GPUs of each worker on Ray.
        epochs: epochs that the job plans, for policies that count shares of the workload.
        lr_convention: "linear": the script's rate is that of an update from all planned workers, and an update that
            combines m of their n gradients moves m/n as far; "same": every update uses the script's rate.
        compensation: what is done about staleness, see `polyrhythm.training.compensation`.
        compress: what gradients and replicas travel as, see `polyrhythm.training.compression`.
        full_duplex: whether workers on other hosts pull while they push, where the policy lets them.
        averaging: where averages of replicas are summed up.
        averaged_state: what becomes of the optimizers' states when replicas are averaged, see
            `polyrhythm.training.config.TrainingConfig`.
        delta_rate: rate at which a mean delta is applied where the policy names no outer optimizer.
        on_divergence: what becomes of a job whose loss is not finite or explodes, see
            `polyrhythm.training.divergence`.
        shards: parameter servers.
        hang_after: seconds without a heartbeat after which a worker hangs.
        trace: folder for traces, one file for each phase.
        token: secret of the job; required for workers on other hosts.
        workers: how many workers must be ready before the first step.
        listen: further addresses of the coordinator, such as ``tcp:10.0.0.1:29400``.
        rates: bytes/s that it sends at most over a connection made to one of those addresses.
        divergence: factor of the `LossWatch` that `on_divergence` goes by.
        heartbeat_s: period of the workers' heartbeats.
        patience_s: how long to wait for the first worker.
        figures: file for what was measured (`polyrhythm.telemetry.Figures`), written as JSON at the job's end.
        given: where the values come from that somebody has chosen, by name, such as ``{"policy": "--policy"}``; all
            others are defaults, in place of which an argument of the script's session holds.

    Raises:
        PolyrhythmError: for an impossible value; one line that names the setting, the value and what may stand there.

    Example:
        >>> JobConfig(policy="ssp:3", shards=0, given={"shards": "job.toml"})
        Traceback (most recent call last):
            ...
        polyrhythm.errors.UsageError: shards in job.toml must be at least 1 but got 0
    """

    policy: str = "bsp"
    job: str = ""
    on: Literal["here", "ray"] = "here"
    worker_gpus: float = 0.0
    epochs: int = 1
    lr_convention: LrConvention = "linear"
    compensation: str = "none"
    compress: str = "none"
    full_duplex: bool = False
    averaging: Averaging = "ring"
    averaged_state: StateTreatment = "keep"
    delta_rate: float = 1.0
    on_divergence: OnDivergence = "ignore"
    shards: int = 1
    hang_after: float = 10.0
    trace: str | None = None
    token: str = ""
    workers: int = 1
    listen: tuple[str, ...] = ()
    rates: dict[str, float] = {}
    divergence: float = EXPLODED
    heartbeat_s: float = 0.5
    patience_s: float = 120.0
    figures: str | None = None
    given: dict[str, str] = {}

    def __post_init__(self) -> None:
        for name, words in CHOICES.items():
            self._require(name, alternatives(words), words.__contains__)
        for name in ("shards", "epochs", "workers"):
            self._require(name, "at least 1", lambda value: value >= 1)
        self._require("hang_after", "more than 0 seconds", lambda value: value > 0)
        self._require("worker_gpus", "at least 0", lambda value: 0 <= value < math.inf)
        self._require("delta_rate", "positive and finite", lambda value: 0 < value < math.inf)
        runnable(self.policy)
        parse_compression(self.compress)
        compensation = parse_compensation(self.compensation)
        if self.full_duplex and compensation.needs_backup:
            raise UsageError(
                f"{self.label('full_duplex')} and {self.label('compensation')} {self.compensation} exclude each other: "
                "it compares a gradient's parameters with the newest, and its worker reads the next ones before the "
                "gradient is there; use one"
            )

    def label(self, name: str) -> str:
        """How messages call a setting: by its flag or variable if one was used."""
        return label(name, self.given.get(name, ""))

    def _require(self, name: str, condition: str, holds: Callable[[Any], bool]) -> None:
        value = getattr(self, name)
        if not holds(value):
            shown = f"{value:g}" if isinstance(value, float) else repr(value)
            raise UsageError(f"{self.label(name)} must be {condition} but got {shown}")

    @property
    def public(self) -> "JobConfig":
        """Without the secret."""
        return msgspec.structs.replace(self, token="")


TYPES: dict[str, Any] = {field.name: field.type for field in msgspec.structs.fields(JobConfig)}
"""Type of each setting."""

CHOICES: dict[str, tuple[str, ...]] = {
    name: get_args(kind) for name, kind in TYPES.items() if get_origin(kind) is Literal
}
"""What the settings that name one of several things may say."""


class Given(NamedTuple):
    """A value that somebody has chosen, and where: a flag, a variable, a file, the script's session."""

    value: Any
    where: str


def label(name: str, where: str) -> str:
    """A setting that was given somewhere.

    >>> label("shards", "--shards"), label("shards", "job.toml"), label("shards", "")
    ('--shards', 'shards in job.toml', 'shards')
    """
    if where.startswith(("--", "POLYRHYTHM_", "PET_")):
        return where
    return f"{name} in {where}" if where else name


def converted(name: str, value: Any, where: str, *, text: bool = False) -> Any:
    """A value as the type that the setting declares.

    Args:
        name: of the setting.
        value: as it was given.
        where: see `Given`.
        text: whether it is a text that may stand for a number, as in the environment.

    Raises:
        PolyrhythmError: for a value of another type.
    """
    kind = TYPES[name]
    if name in ("nnodes", "nproc_per_node") and type(value) is int:
        return str(value)
    try:
        return msgspec.convert(value, kind, strict=not text)
    except msgspec.ValidationError:
        raise UsageError(f"{label(name, where)} must be {kind_words(kind)} but got {value!r}") from None


def kind_words(kind: Any) -> str:
    """How a message calls a type.

    >>> kind_words(int), kind_words(str | None), kind_words(Literal["ring", "server"])
    ('a whole number', 'a text', 'ring or server')
    """
    if get_origin(kind) is Literal:
        return alternatives(get_args(kind))
    return KINDS[kind] if kind in KINDS else kind_words(get_args(kind)[0])


def alternatives(words: tuple[str, ...]) -> str:
    """One of these.

    >>> alternatives(("keep", "average", "reset"))
    'keep, average or reset'
    """
    return f"{', '.join(words[:-1])} or {words[-1]}"


def canonical(name: str, value: Any) -> Any:
    """The value as it is compared and kept: specs in their canonical form.

    Raises:
        PolyrhythmError: for a spec that cannot be read.
    """
    if name == "policy":
        return runnable(value)
    return parse_compression(value).spec if name == "compress" else value


def runnable(policy: str | Policy[Any]) -> str:
    """The canonical spec of a policy that real workers can run.

    Raises:
        PolyrhythmError: if it cannot be read, or not be run.
    """
    parsed = policy if isinstance(policy, Policy) else parse_policy(policy)
    runtime_placement(parsed)
    return parsed.spec


def make_config(chosen: Mapping[str, Given], **found: Any) -> JobConfig:
    """A config of the values that were chosen, and of what was found out.

    Raises:
        PolyrhythmError: as `JobConfig`.
    """
    values = {name: canonical(name, value) for name, (value, _) in chosen.items()}
    where = {name: given.where for name, given in chosen.items()}
    heartbeat_s = min(0.5, values["hang_after"] / 4) if "hang_after" in values else 0.5
    return JobConfig(**{**values, "heartbeat_s": heartbeat_s, "given": where, **found})


def coordinator_address(job: str) -> str:
    return f"unix:@polyrhythm-{job}"
