"""What the data plane says: who one is, where parameters stand, and gradients and parameters that move.

A worker opens a connection with `Hello`, proves over TCP that it knows the job's token and, once it is `Welcome`,
describes its model to each shard with `Open`. Then it sends `PushGradient` and `Pull`; at a switch, `Upload` or
`Download`. The coordinator tells shards in other processes what to do with `Apply`, `Drop`, `Forget` and `KeepState`,
and they tell it what has `Arrived`.
"""

from collections.abc import Mapping
from math import prod
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec

Role: TypeAlias = Literal["worker", "heartbeat", "sums", "coordinator", "standby", "control"]
"""Who connects: a worker, its heartbeat, what it adds to sums, the coordinator to another shard, its standby to it, or
someone who steers the job.
"""

Rank: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**20)]
"""Number of a worker."""

MOST_FIGURES: Final = 32
"""Names under which a script can report."""

MOST_FIGURE_NAME: Final = 64
"""Characters of such a name."""

ReportedFigures: TypeAlias = Annotated[
    dict[Annotated[str, msgspec.Meta(min_length=1, max_length=MOST_FIGURE_NAME)], float],
    msgspec.Meta(max_length=MOST_FIGURES),
]
"""What a script reports, by its names."""

Hyperparameter: TypeAlias = float | tuple[float, ...] | bool | None

GroupSettings: TypeAlias = tuple[dict[str, Hyperparameter], ...]
"""Hyper-parameters of each group of a model's parameters; empty where they are as before."""
"""A hyper-parameter that changes while training: a rate, a momentum, a pair of betas."""


UNREAD: Final = -1
"""Version of parameters that nobody has read from the servers."""


NOT_ON_SERVERS: Final = "servers"
"""Name of the term of a worker that says why servers cannot make its steps."""

NOT_APART: Final = "apart"
"""Name of the term of a worker that says why workers cannot make steps of their own."""

LEAST_SHARE: Final = "least share"
"""Name of the term of a worker that says how many samples its smallest mini-batch must have."""

LEAST_EVEN: Final = "least mini-batch"
"""Name of the same where shares are equal, too; an unmodified script has the last mini-batch of its own loader."""

NOT_IN_SHARES: Final = "shares"
"""Name of the term of a worker that says why its mini-batches cannot be unequal."""

REASONS: Final = (NOT_ON_SERVERS, NOT_APART, NOT_IN_SHARES)
"""Terms in which workers say why. A checkpoint's data are the same, whatever these say in another version."""


def other_term(own: Mapping[str, object], kept: Mapping[str, object]) -> str:
    """The first of these terms that says otherwise of the data than a checkpoint's; empty if none does."""
    return next((name for name in {**kept, **own} if own.get(name) != kept.get(name) and name not in REASONS), "")


class ShardMessage(msgspec.Struct, tag=True, forbid_unknown_fields=True):
    """Base of all messages of the data plane."""


class Hello(ShardMessage):
    """First message on every connection. `arguments` are those that a worker's script has given to its session.

    A worker's script has finished so many `trainings` in this process before.
    """

    job: str
    role: Role
    rank: Rank
    arguments: dict[str, str | int] = {}
    nonce: bytes = b""
    trainings: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0


class Challenge(ShardMessage):
    """The answer to a `Hello` over TCP: prove that you know the token."""

    nonce: bytes


class Proof(ShardMessage):
    """The answer to a `Challenge`; see `polyrhythm.runtime.wire.credentials`."""

    evidence: bytes


class Welcome(ShardMessage):
    """The answer to who is let in; over TCP with the evidence that the server knows the token, too."""

    evidence: bytes = b""


class Rejected(ShardMessage):
    """The answer to one that is not, or to an `Open` that does not fit; `reason` is one line for the user."""

    reason: str


class Broken(ShardMessage):
    """The policy has broken its contract, and the job ends: a rank tells the coordinator, and that all workers."""

    reason: str


class Parameter(NamedTuple):
    name: str
    shape: tuple[int, ...]


class Layout(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The trainable parameters of a model in the order of its flat vector, by parameter group.

    Example:
        >>> mine = Layout(((Parameter("w", (2, 3)), Parameter("b", (3,))),))
        >>> mine.difference(Layout(((Parameter("w", (2, 4)), Parameter("b", (4,))),)))
        'parameter 0 is w (2, 3) here and w (2, 4) there'
    """

    groups: tuple[tuple[Parameter, ...], ...]

    def __post_init__(self) -> None:
        for row in self.groups:
            for name, shape in row:
                if any(length < 0 for length in shape):
                    raise ValueError(f"parameter {name} cannot have shape {shape}")

    @property
    def elements(self) -> int:
        return sum(prod(shape) for group in self.groups for _, shape in group)

    def difference(self, other: "Layout") -> str | None:
        mine, theirs = self._rows(), other._rows()
        for index, (here, there) in enumerate(zip(mine, theirs, strict=False)):
            if here != there:
                return f"parameter {index} is {here} here and {there} there"
        if len(mine) != len(theirs):
            return f"there are {len(mine)} parameters here and {len(theirs)} there"
        return None

    def _rows(self) -> list[str]:
        several = len(self.groups) > 1
        return [
            f"{p.name} {p.shape}" + (f" in group {number}" if several else "")
            for number, group in enumerate(self.groups)
            for p in group
        ]


class OptimizerSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How to build the optimizer of a shard.

    Args:
        kind: a class of torch.optim, such as ``AdamW``, or ``module:Class`` if the job's owner has allowed it.
        options: hyper-parameters of all groups.
        groups: hyper-parameters of each group, which come first.
    """

    kind: str
    options: dict[str, Any] = {}
    groups: tuple[dict[str, Any], ...] = ()


class StateShape(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An optimizer's state without its numbers: shapes of each vector's pieces, and Python numbers by tensor.

    `absent` are the places of tensors that have no state yet, in order.
    """

    vectors: dict[str, tuple[tuple[int, ...], ...]] = {}
    numbers: dict[str, tuple[float, ...]] = {}
    absent: tuple[int, ...] = ()


class Open(ShardMessage):
    """A worker describes its model and asks for its place at a shard; `compress` is what its gradients travel as."""

    layout: Layout
    optimizer: OptimizerSpec
    compress: str = "none"


class Opened(ShardMessage):
    """This is shard `index` of `count`.

    With `shared`, descriptors of buffer 0 and of the parameters come along; with `direct` the worker may read the
    latter.
    """

    index: int
    count: int
    version: int
    shared: bool
    direct: bool = False


class PushGradient(ShardMessage):
    """The gradient of step `number`: in shared buffer `buffer`, or the payload."""

    number: int
    buffer: int = 0


class Pull(ShardMessage):
    """Ask for parameters of at least `version`: into shared buffer `buffer`, or as a payload."""

    version: int
    buffer: int = 0


class Pulled(ShardMessage):
    """The parameters of `version` are in the buffer that was named, or are the payload."""

    version: int


class MoreRoom(ShardMessage):
    """All slots of this worker are held; it needs another one."""


class NewBuffer(ShardMessage):
    """A further buffer; its descriptor comes along."""

    index: int


class Upload(ShardMessage):
    """Parameters and optimizer state of the source, as one payload: the parameters, then each vector."""

    version: int
    state: StateShape


class Loaded(ShardMessage):
    """An upload is in place."""

    version: int


class Download(ShardMessage):
    """Ask for parameters of at least `version` and the optimizer's state."""

    version: int


class Downloaded(ShardMessage):
    """The answer to `Download`; its payload is as that of `Upload`."""

    version: int
    state: StateShape


class WeightedGradient(NamedTuple):
    """One gradient of an update: whose, which step's, its weight and its staleness."""

    worker: int
    number: int
    weight: float = 1.0
    staleness: int = 0


class Add(ShardMessage):
    """What the member of `rank` among `size` contributes to a sum of so many numbers: the payload, or nothing."""

    generation: str
    number: int
    rank: int
    size: int
    elements: int


class Summed(ShardMessage):
    """The sum, as the payload."""

    generation: str
    number: int


class Apply(ShardMessage):
    """Make one optimizer step with the weighted mean of these gradients.

    `settings` has the hyper-parameters of each group of the model that hold from now on, such as its rate; nothing
    keeps them. `lr_scale` multiplies the rate of this step only.
    """

    contributions: tuple[WeightedGradient, ...]
    lr_scale: float = 1.0
    settings: GroupSettings = ()


class Drop(ShardMessage):
    """Forget gradients by worker and number, arrived or not."""

    gradients: tuple[tuple[int, int], ...]


class Forget(ShardMessage):
    """This worker is gone."""

    worker: int


class KeepState(ShardMessage):
    """Keep parameters and optimizer state, as they are between two steps, as a part of the record of this number."""

    number: int


class KeptState(ShardMessage):
    """They are kept."""

    number: int


class Arrived(ShardMessage):
    """A gradient is complete at this shard."""

    worker: int
    number: int


ToShard: TypeAlias = Open | PushGradient | Pull | MoreRoom | Upload | Download
FOR_SHARD: Final = frozenset(get_args(ToShard))
"""The same as a set, in which a type is found several times faster."""

FromShard: TypeAlias = Welcome | Rejected | Broken | Opened | Pulled | NewBuffer | Loaded | Downloaded
OF_SHARD: Final = frozenset(get_args(FromShard))

FromCoordinator: TypeAlias = Apply | Drop | Forget | KeepState
"""To a shard in another process."""

ShardToCoordinator: TypeAlias = Welcome | Rejected | Arrived | KeptState
"""From a shard in another process."""
