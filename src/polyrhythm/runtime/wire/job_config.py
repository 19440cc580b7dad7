"""All settings of a job in one struct: what may stand in each, and which place a value comes from.

`polyrhythm.runtime.wire.config_sources` builds it; it travels whole to the coordinator and to the workers.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias, get_args, get_origin

import msgspec

from polyrhythm.core import Policy
from polyrhythm.core.placement import runtime_placement
from polyrhythm.errors import PolicyError, ScenarioError, UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.wire.setting_values import (
    DURATION_WORDS,
    JOB_NAME_WORDS,
    LONGEST_S,
    LONGEST_WORDS,
    alternatives,
    is_job_name,
    kind_words,
    label,
    seconds,
)
from polyrhythm.training.compensation import parse_compensation
from polyrhythm.training.compression import parse_compression
from polyrhythm.training.config import LrConvention, StateTreatment
from polyrhythm.training.data.injection import parse_injection
from polyrhythm.training.data.partition import parse_partition
from polyrhythm.training.divergence import EXPLODED, OnDivergence

Averaging: TypeAlias = Literal["ring", "server"]
"""Where averages of replicas are summed up: on the way from worker to worker, or by the servers."""

INTERNAL = frozenset({"run", "given"}) | {
    *("token", "workers", "listen", "rates", "divergence", "heartbeat_s", "patience_s", "figures", "trainjob")
}
"""Fields without a flag: they follow from the others, or only a program sets them."""

BY_SCRIPT = ("policy", "epochs", "compress", "on_divergence", "checkpoint", "every")
"""Fields that an argument of `polyrhythm.session` can set."""

StartMethod: TypeAlias = Literal["spawn", "fork", "forkserver"]
"""How the workers of a host come to be, in torchrun's words."""

START_METHODS: tuple[str, ...] = get_args(StartMethod)

OF_EPOCHS = (
    "counts shares of all epochs, and nobody has said how many there are; give polyrhythm run --epochs, or "
    "polyrhythm.session(epochs=...)"
)
"""Why a policy with switch points cannot run."""

OF_UNKNOWN = (
    "counts shares of epochs whose length nobody knows; use a policy that counts none, such as bsp or asp, and "
    "polyrhythm ctl to switch while it runs"
)
"""The same, of a stream."""

NO_ID = "none"
"""What torchrun takes for the id of a job that is given none."""


class TorchrunFlags(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The flags of torchrun that mean something here, with torchrun's names and defaults.

    Args:
        nnodes: hosts of the job.
        nproc_per_node: workers on each host: a number, auto, cpu or gpu.
        node_rank: of this host, from 0.
        rdzv_backend: static or c10d; the coordinator is the meeting point in both cases.
        rdzv_endpoint: HOST or HOST:PORT of host 0.
        rdzv_id: id of a job that has no `JobConfig.job`; none on one host: a new one.
        master_addr: host 0, in place of `rdzv_endpoint`.
        master_port: its port.
        max_restarts: how often a host starts workers again that have died.
        start_method: spawn: each worker is a process of its own from the start; fork or forkserver: all workers of a
            host are forked from one that has imported torch; none given: forked if there are several, on Linux without
            a GPU.
        standalone: says that there is one host, as is the default.
        module: whether the script is the name of a module.
        no_python: whether the script is a program of its own.
    """

    nnodes: str = "1:1"
    nproc_per_node: str = "1"
    node_rank: int = 0
    rdzv_backend: str = "static"
    rdzv_endpoint: str = ""
    rdzv_id: str = NO_ID
    master_addr: str = "127.0.0.1"
    master_port: int | None = None
    max_restarts: int = 0
    start_method: StartMethod | None = None
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
        group_size: processes of each worker, which have one model among them.
        epochs: epochs that the job plans, for policies that count shares of the workload.
        lr_convention: "linear": the script's rate is that of an update from all planned workers, and an update that
            combines m of their n gradients moves m/n as far; "same": every update uses the script's rate.
        compensation: what is done about staleness, see `polyrhythm.training.compensation`.
        compress: what gradients and replicas travel as, see `polyrhythm.training.compression`.
        full_duplex: whether workers on other hosts pull while they push, where the policy lets them.
        partition: which worker reads which samples, such as ``seldp``; see `polyrhythm.training.data.partition`.
        injection: shares (alpha, beta) of data injection, such as ``0.5,0.5``.
        averaging: where averages of replicas are summed up.
        averaged_state: what becomes of the optimizers' states when replicas are averaged; see `TrainingConfig`.
        delta_rate: rate at which a mean delta is applied where the policy names no outer optimizer.
        on_divergence: what becomes of a job whose loss diverges, see `polyrhythm.training.divergence`.
        shards: parameter servers.
        hang_after: seconds without a heartbeat after which a worker hangs.
        max_coordinator_restarts: how often a coordinator that dies is started again; 0: the job ends with it.
        standby: HOST or HOST:PORT of the host on which the coordinator is started if the first one is lost.
        snapshot: time between two snapshots of the servers' state, from which a new coordinator goes on, such as
            ``5s``.
        grace: seconds that workers have after SIGTERM or Ctrl-C, and the servers with them.
        checkpoint: folder for checkpoints, from the newest of which the job goes on.
        every: time between two checkpoints, such as ``60s`` or ``5m``.
        keep: checkpoints that stay in the folder.
        trace: folder for traces, one file for each phase.
        ui: whether there is a page about the job while it runs; ``polyrhythm run`` has one on a terminal unless told
            otherwise.
        ui_host: where the page and the metrics listen; beyond this host only with a token.
        ui_port: port of the page; 0 is any that is free.
        report: HTML file for the page as it was at the end.
        metrics_port: port of the metrics for Prometheus; 0 is any that is free.
        events: file for what happens to the job, as JSON lines.
        tensorboard: folder for loss, throughput and the like as TensorBoard reads them.
        tls_cert: certificate of this host, PEM; with `tls_key` and `tls_ca` connections between hosts have TLS.
        tls_key: its key.
        tls_ca: certificate of the authority that has signed those of all hosts.
        allow_policy_files: whether a running job may switch to a policy in a file or module that it has not loaded.
        token: secret of the job; required for workers on other hosts, and made where none is given.
        workers: how many workers must be ready before the first step.
        listen: further addresses of the coordinator, such as ``tcp:10.0.0.1:29400``.
        rates: bytes/s that it sends at most over a connection made to one of those addresses.
        divergence: factor of the `LossWatch` that `on_divergence` goes by.
        heartbeat_s: period of the workers' heartbeats.
        patience_s: how long to wait for the first worker.
        figures: file for what was measured (`polyrhythm.telemetry.Figures`), written as JSON at the job's end.
        run: what tells this run of a job from others of its name.
        trainjob: whether Kubeflow's TrainJob is told how far the job is.
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
    group_size: int = 1
    epochs: int = 1
    lr_convention: LrConvention = "linear"
    compensation: str = "none"
    compress: str = "none"
    full_duplex: bool = False
    partition: str = "shared"
    injection: str = "none"
    averaging: Averaging = "ring"
    averaged_state: StateTreatment = "keep"
    delta_rate: float = 1.0
    on_divergence: OnDivergence = "ignore"
    shards: int = 1
    hang_after: float = 10.0
    max_coordinator_restarts: int = 5
    standby: str = ""
    snapshot: str = "5s"
    grace: float = 30.0
    checkpoint: str | None = None
    every: str = "60s"
    keep: int = 3
    trace: str | None = None
    ui: bool = False
    ui_host: str = "127.0.0.1"
    ui_port: int = 0
    report: str | None = None
    metrics_port: int | None = None
    events: str | None = None
    tensorboard: str | None = None
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    allow_policy_files: bool = False
    token: str = ""
    workers: int = 1
    listen: tuple[str, ...] = ()
    rates: dict[str, float] = {}
    divergence: float = EXPLODED
    heartbeat_s: float = 0.5
    patience_s: float = 120.0
    figures: str | None = None
    trainjob: bool = False
    run: str = ""
    given: dict[str, str] = {}

    def __post_init__(self) -> None:
        for name, words in CHOICES.items():
            self._require(name, alternatives(words), words.__contains__)
        self._require("job", JOB_NAME_WORDS, is_job_name)
        self._require("start_method", alternatives(START_METHODS), (None, *START_METHODS).__contains__)
        for name in ("every", "snapshot"):
            self._require(name, DURATION_WORDS, lambda value: seconds(value) > 0)
            self._require(name, LONGEST_WORDS, lambda value: seconds(value) <= LONGEST_S)
        for name in ("shards", "epochs", "workers", "keep", "group_size"):
            self._require(name, "at least 1", lambda value: value >= 1)
        self._require("hang_after", "more than 0 seconds", lambda value: value > 0)
        for name in ("max_restarts", "max_coordinator_restarts"):
            self._require(name, "at least 0", lambda value: value >= 0)
        self._require("grace", "at least 0 seconds", lambda value: value >= 0)
        for name in ("hang_after", "grace"):
            self._require(name, LONGEST_WORDS, lambda value: value <= LONGEST_S)
        self._require("worker_gpus", "at least 0", lambda value: 0 <= value < math.inf)
        self._require("delta_rate", "positive and finite", lambda value: 0 < value < math.inf)
        for name in ("ui_port", "metrics_port", "master_port"):
            self._require(name, "from 0 to 65535", lambda value: value is None or 0 <= value <= 65535)
        for name in SPECS:
            canonical(name, getattr(self, name), self.given.get(name, ""))
        self._check_data()
        compensation = parse_compensation(self.compensation)
        if self.full_duplex and compensation.needs_backup:
            raise UsageError(
                f"{self.label('full_duplex')} and {self.label('compensation')} {self.compensation} exclude each other: "
                "it compares a gradient's parameters with the newest, and its worker reads the next ones before the "
                "gradient is there; use one"
            )

    def _check_data(self) -> None:
        try:
            parse_partition(self.partition)
        except ScenarioError as error:
            reason = str(error).removeprefix("training.partition: ")
            raise UsageError(f"{self.label('partition')}: {reason}") from None
        try:
            parse_injection(self.injection)
        except UsageError as error:
            raise UsageError(str(error).replace("injection", self.label("injection"), 1)) from None

    def label(self, name: str) -> str:
        """How messages call a setting: by its flag or variable if one was used."""
        return label(name, self.given.get(name, ""))

    def _require(self, name: str, condition: str, holds: Callable[[Any], bool]) -> None:
        value = getattr(self, name)
        if not holds(value):
            shown = f"{value:g}" if isinstance(value, float) else repr(value)
            raise UsageError(f"{self.label(name)} must be {condition} but got {shown}")

    @property
    def watched(self) -> bool:
        """Whether a process beside the job follows it."""
        files = (self.report, self.events, self.tensorboard)
        return self.ui or self.trainjob or self.metrics_port is not None or any(file is not None for file in files)

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


TEXTS = ("nnodes", "nproc_per_node", "every", "snapshot")
"""Settings whose text is often a number, which a job file may have as one."""


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
    if name in TEXTS and isinstance(value, int | float):  # of which its own check says what it must be
        return str(value).lower()
    try:
        return msgspec.convert(value, kind, strict=not text)
    except msgspec.ValidationError:
        raise UsageError(f"{label(name, where)} must be {kind_words(kind)} but got {value!r}") from None


def canonical(name: str, value: Any, where: str = "") -> Any:
    """The value as it is compared and kept: specs in their canonical form.

    Args:
        name: of the setting.
        value: of it.
        where: see `Given`.

    Raises:
        PolyrhythmError: for a spec that cannot be read; the line begins with where it was given.
    """
    try:
        return SPECS[name](value) if name in SPECS else value
    except UsageError as error:
        kind = UsageError if isinstance(error, PolicyError) else type(error)  # the policy has broken nothing
        raise kind(f"{label(name, where)}: {error}" if where else str(error)) from None


def runnable(policy: str | Policy[Any]) -> str:
    """The canonical spec of a policy that real workers can run.

    Raises:
        PolyrhythmError: if it cannot be read, or not be run.
    """
    if not isinstance(policy, str | Policy):
        raise UsageError(f"a policy is a spec, such as 'asp', or a Policy, but got {policy!r}")
    parsed = policy if isinstance(policy, Policy) else parse_policy(policy)
    runtime_placement(parsed)
    return parsed.spec


def known_compensation(spec: str) -> str:
    parse_compensation(spec)
    return spec


SPECS: dict[str, Callable[[Any], str]] = {
    "policy": runnable,
    "compress": lambda value: parse_compression(value).spec,
    "compensation": known_compensation,
}
"""Settings that are specs, and what makes them canonical."""


def make_config(chosen: Mapping[str, Given], **found: Any) -> JobConfig:
    """A config of the values that were chosen, and of what was found out.

    Raises:
        PolyrhythmError: as `JobConfig`.
    """
    values = {name: canonical(name, *given) for name, given in chosen.items()}
    where = {name: given.where for name, given in chosen.items()}
    heartbeat_s = min(0.5, values["hang_after"] / 4) if "hang_after" in values else 0.5
    return JobConfig(**{**values, "heartbeat_s": heartbeat_s, "given": where, **found})


def coordinator_address(job: str) -> str:
    return f"unix:@polyrhythm-{job}"
