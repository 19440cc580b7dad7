"""What is trained and how, as it stands in the ``[training]`` table of a scenario or job file."""

import math
from collections.abc import Callable
from typing import Any, Literal, get_args

import msgspec

from polyrhythm.core.arguments import MOST_EPOCHS, MOST_SEED
from polyrhythm.errors import ScenarioError, did_you_mean
from polyrhythm.training.catalogue import TASKS
from polyrhythm.training.compensation import parse_compensation
from polyrhythm.training.compression import parse_compression
from polyrhythm.training.data.injection import own_batch
from polyrhythm.training.data.partition import parse_partition
from polyrhythm.training.divergence import EXPLODED

ScheduleKind = Literal["constant", "step", "cosine"]
LrConvention = Literal["linear", "same"]
StateTreatment = Literal["keep", "average", "reset"]
Tokens = Literal["char", "word"]

CHOICES: dict[str, tuple[str, ...]] = {
    "task": tuple(TASKS),
    "tokens": get_args(Tokens),
    "schedule": get_args(ScheduleKind),
    "lr_convention": get_args(LrConvention),
    "averaged_state": get_args(StateTreatment),
}
"""What the fields that name one of several things may say."""

EVALUATIONS = 20
"""Evaluations of a run whose `TrainingConfig.eval_every_samples` is not given."""


class TrainingConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Task, optimizer, schedule and workload of one job; all counts are of samples, never of optimizer steps.

    Raises:
        ScenarioError: for an impossible value; one line that names the field.

    Example:
        >>> TrainingConfig(learning_rate=0.1, momentum=0.9).workload_samples(train_samples=1437)
        14370
        >>> TrainingConfig(batch_size=0)
        Traceback (most recent call last):
            ...
        polyrhythm.errors.ScenarioError: training.batch_size must be at least 1 but got 0
    """

    task: str = "digits"
    """What is learned: digits, fashion-mnist, cifar10, cifar10-16 (its images averaged down to 16x16) or text."""

    model: str | None = None
    """A model of the task, such as mlp, cnn, resnet20, resnet32, transformer or transformer-small; none: the first."""

    data: str | None = None
    """Folder with parquet files (images) or a text file (text); none: download, where the task can."""

    tokens: Tokens = "char"
    """What a token of the task text is: char or word."""

    train_samples: int | None = None
    """Train on a subset of this many samples; none: all."""

    test_samples: int | None = None
    """Evaluate on a subset of this many samples; none: all."""

    data_seed: int | None = None
    """Seed of the order of the samples; none: the seed of the run."""

    partition: str = "shared"
    """Which worker reads which samples: shared, defdp, seldp, labels:1, sorted, shards:2, dirichlet:0.3, sizes:2,1."""

    injection: tuple[float, float] | None = None
    """Shares (alpha, beta) of randomised data injection: alpha of the workers send beta of their mini-batch to all in
    every step, and each draws the fewer samples itself."""

    optimizer: str = "SGD"
    """Name of any class of torch.optim."""

    learning_rate: float = 0.05
    """The rate eta of one mini-batch; see `lr_convention` for what an update uses."""

    momentum: float = 0.0
    """Momentum, for the optimizers that have one."""

    weight_decay: float = 0.0
    """Weight decay."""

    nesterov: bool = False
    """Nesterov's form of the momentum of SGD."""

    optimizer_options: dict[str, Any] = {}
    """Further arguments of the optimizer's class, such as betas = [0.9, 0.95]."""

    batch_size: int = 32
    """Samples of one mini-batch on one worker."""

    lr_convention: LrConvention = "linear"
    """Rate of an update that averages m gradients, and of a step on one of n replicas that are averaged later.

    linear: m * eta and n * eta, so that a sample moves the parameters as far under every policy. same: eta for both.
    Under both, local SGD with H = 1 and plain SGD is BSP.
    """

    compensation: str = "none"
    """What the server does about staleness: none, lr-staleness, dc-asgd:lambda=0.04, dc-asgd-adaptive:lambda=2."""

    compression: str = "none"
    """What gradients and replicas are sent as: none, fp16, bf16, int8, topk:0.01."""

    averaged_state: StateTreatment = "keep"
    """What becomes of the optimizers' state when replicas are averaged: each keeps its own, all take the average, or
    all start anew."""

    delta_rate: float = 1.0
    """Share of the way to the replicas' mean that the global parameters go when deltas are averaged."""

    schedule: ScheduleKind = "constant"
    """How the rate goes over the workload: constant, step (at `decay_at`) or cosine (to zero)."""

    decay_at: tuple[float, ...] = ()
    """Shares of the workload at which the step schedule multiplies the rate by `decay_factor`."""

    decay_factor: float = 0.1
    """Factor of each decay."""

    warmup: float = 0.0
    """Share of the workload over which the rate rises linearly from zero."""

    epochs: float = 10.0
    """Passes over the training set by the whole job."""

    samples: int | None = None
    """Samples that the whole job processes; takes the place of `epochs`."""

    eval_every_samples: int | None = None
    """Samples between evaluations; none: twenty evaluations, evenly spread."""

    target_accuracy: float | None = None
    """Accuracy on the test set whose first crossing is the time to target."""

    rollback: bool = False
    """Whether a run that diverges goes back to where it was good, and on under BSP; a simulated one writes no trace."""

    divergence: float = EXPLODED
    """A run has diverged when the mean of 50 losses is above so many times that of the first 50, or is not finite."""

    def __post_init__(self) -> None:
        check_names(self)
        for name in ("batch_size", "train_samples", "test_samples", "samples", "eval_every_samples"):
            require(self, name, "at least 1", lambda value: value >= 1)
        for name in ("learning_rate", "epochs", "delta_rate"):
            require(self, name, "positive and finite", lambda value: 0 < value < math.inf)
        require(self, "epochs", f"at most {MOST_EPOCHS:g}", lambda value: value <= MOST_EPOCHS)
        require(self, "data_seed", f"from 0 to {MOST_SEED}", lambda value: 0 <= value <= MOST_SEED)
        require(self, "divergence", "above 1", lambda value: value > 1)
        for name in ("momentum", "warmup"):
            require(self, name, "in [0, 1)", lambda value: 0 <= value < 1)
        require(self, "weight_decay", "at least 0 and finite", lambda value: 0 <= value < math.inf)
        for name in ("decay_factor", "target_accuracy"):
            require(self, name, "in (0, 1]", lambda value: 0 < value <= 1)
        check_schedule(self)
        if self.nesterov and not self.momentum:
            raise ScenarioError("training.nesterov needs a momentum above 0; give training.momentum too")
        check_specs(self)
        require(self, "injection", "two shares in (0, 1]", lambda pair: all(0 < share <= 1 for share in pair))

    def own_batch(self, workers: int) -> int:
        """Samples that each of so many workers draws for one mini-batch; fewer than `batch_size` with injection."""
        return own_batch(self.batch_size, *self.injection, workers) if self.injection else self.batch_size

    @property
    def model_name(self) -> str:
        """The model that is meant: the given one or the task's first."""
        return self.model or TASKS[self.task][0]

    def workload_samples(self, train_samples: int) -> int:
        """Samples that the whole job processes, given the size of the training set."""
        return self.samples or max(1, round(self.epochs * train_samples))

    def evaluation_interval(self, train_samples: int) -> int:
        """Samples between two evaluations, given the size of the training set."""
        return self.eval_every_samples or max(1, self.workload_samples(train_samples) // EVALUATIONS)


def check_names(config: TrainingConfig) -> None:
    """The fields that name one of several things."""
    for field, known in CHOICES.items():
        require_known(field, getattr(config, field), known)
    if config.model is not None:
        require_known("model", config.model, TASKS[config.task], f" of task {config.task}")
    if config.data is not None and config.task == "digits":
        raise ScenarioError(f"training.data {config.data!r} is not read by task digits; leave it out")
    if "lr" in config.optimizer_options:
        raise ScenarioError("training.optimizer_options has lr; give it as training.learning_rate")
    if config.tokens != "char" and config.task != "text":
        raise ScenarioError(f"training.tokens {config.tokens!r} goes with task text, not {config.task}; leave it out")


def require_known(field: str, name: str, known: tuple[str, ...], of: str = "") -> None:
    """`name` is one of `known`."""
    if name not in known:
        raise ScenarioError(f"training.{field}: unknown {field}{of} {name!r}: {did_you_mean(name, known)}")


def check_specs(config: TrainingConfig) -> None:
    """The fields that are specs; a line names the field."""
    parse_partition(config.partition)
    for field, parse in (("compensation", parse_compensation), ("compression", parse_compression)):
        try:
            parse(getattr(config, field))
        except ScenarioError as error:
            raise ScenarioError(f"training.{field}: {error}") from None


def check_schedule(config: TrainingConfig) -> None:
    """The shares of a step schedule ascend inside the workload, and only that schedule has them."""
    shares = config.decay_at
    if (config.schedule == "step") != bool(shares):
        raise ScenarioError(
            f"training.decay_at goes with schedule = 'step' but got decay_at {list(shares)} "
            f"and schedule {config.schedule!r}; give both or neither"
        )
    if list(shares) != sorted(set(shares)) or not all(0 < share < 1 for share in shares):
        raise ScenarioError(f"training.decay_at must ascend inside (0, 1) but got {list(shares)}")


def require(config: TrainingConfig, name: str, condition: str, holds: Callable[[Any], bool]) -> None:
    """A number that is given satisfies a condition."""
    value = getattr(config, name)
    if value is not None and not holds(value):
        raise ScenarioError(f"training.{name} must be {condition} but got {value}")
