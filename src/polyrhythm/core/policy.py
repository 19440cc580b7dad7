"""The contract that every synchronization policy keeps.

The driver (simulator or runtime) calls, in this order:

1. `Policy.init(cluster)` once, before anyone has joined;
2. `Policy.decide(state, Joined(...))` with all first workers in one event; they wait until a `Proceed` names them;
3. `Policy.decide(state, event)` for every later event, one at a time, in order of time. Decisions are carried out in
   the order in which they are returned, before the next event.

Between two events nothing happens that the policy is not told. A policy is a frozen value, `decide` is a pure
function, and a state is frozen, comparable and picklable: this is what makes replay, checkpoints, the simulator and
decisions taken by every rank on its own possible.

A worker is **running** between a `Proceed` and its `Report`, and **waiting** otherwise. A policy may name only
waiting workers in a `Proceed`, only pending contributions in a `Sync`; `Ledger` checks it in the simulator and the
runtime.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from dataclasses import dataclass, fields, replace
from functools import wraps
from types import FunctionType
from typing import Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, get_args

from polyrhythm.core.arguments import checked, name_of
from polyrhythm.core.types import Cluster, Decisions, Event, Exchange
from polyrhythm.errors import PolicyError, SpecError, UsageError, line_of, may_raise, shown

State = TypeVar("State")
"""A policy's own frozen state."""

Placement: TypeAlias = Literal["clock", "every_rank", "coordinator"]
"""Where decisions can be taken: from clocks alone; from everyone's scalars of the same step; from arrival order."""

Need: TypeAlias = Literal["loss", "grad_sq_norm", "probe_loss"]
"""What a policy may ask for beside times and clocks."""


@dataclass(frozen=True, slots=True)
class Traits:
    """What a policy needs from a driver, so that the runtime can pick the cheapest placement.

    Args:
        placement: see `Placement`.
        exchanges: kinds of step that its `Proceed`s start.
        needs: optional `Report` fields that it reads, and "probe_loss" if it asks for a `MeasureLoss`.
        cancels: whether it abandons steps in flight.
        waits: whether a worker with a replica waits for the answer to its report. If not, it goes on by itself, any
            number of steps ahead of the coordinator's word. The policy answers every report with a `Proceed`, and ends
            this with a `Stop`.
        reads_early: whether a step may start from parameters that were read while the worker's last gradient was on
            its way, so that they are without it.
        steady: whether every step of all live workers ends in one update from all of them, after which all go on; of
            such a policy nobody in synchronous mode has to be shown the steps of others. Each class says so for itself:
            one that extends such a policy does not inherit it.
        shares: whether it gives workers shares of unequal size (`Proceed.shares`), from how long their steps take. Of a
            steady policy the ranks need to be told nothing else.

    >>> from polyrhythm.policies import parse_policy
    >>> sorted(parse_policy("selsync").traits.needs)
    ['grad_sq_norm']
    """

    placement: Placement = "coordinator"
    exchanges: frozenset[Exchange] = frozenset({"gradients"})
    needs: frozenset[Need] = frozenset()
    cancels: bool = False
    waits: bool = True
    reads_early: bool = False
    steady: bool = False
    shares: bool = False

    def __post_init__(self) -> None:
        if self.placement not in get_args(Placement):
            known = ", ".join(get_args(Placement))
            raise SpecError(f"Traits.placement must be one of {known} but got {shown(self.placement)}")
        for name, kind in (("exchanges", Exchange), ("needs", Need)):
            given: Any = getattr(self, name)
            if not isinstance(given, Set | list | tuple) or not all(item in get_args(kind) for item in given):
                known = ", ".join(get_args(kind))
                raise SpecError(f"Traits.{name} must be a set of {known} but got {shown(given)}")


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a policy promises at all times on a cluster of n workers, checked by the conformance kit.

    n counts everyone who ever takes part: a worker that joins later raises it.

    Args:
        lead: largest difference between the clocks of two live workers.
        staleness: largest `Report.staleness`.

    >>> from polyrhythm.policies import parse_policy
    >>> parse_policy("ssp:3").bounds(Cluster(workers=4)).lead
    4.0
    """

    lead: float = math.inf
    staleness: float = math.inf


@dataclass(frozen=True)
class Policy(ABC, Generic[State]):
    """Base of all policies: a frozen dataclass whose fields are its parameters.

    A subclass sets `name` (its spec is ``name:field=value,...``), `summary` (one line for ``polyrhythm policies``) and
    `traits`, checks its fields in ``__post_init__``, after their types have been, and implements `init` and `decide`. A
    policy that wraps others overrides `traits` with a property, and `stages` or `in_force` where they say more.

    >>> from polyrhythm.core import Joined, Proceed, Report, Sync
    >>> @dataclass(frozen=True)
    ... class Alone(Policy[None]):
    ...     name = "alone"
    ...     summary = "apply each gradient when it arrives"
    ...     def init(self, cluster):
    ...         return None
    ...     def decide(self, state, event):
    ...         match event:
    ...             case Joined(workers=workers):
    ...                 return None, (Proceed(workers),)
    ...             case Report(worker=worker):
    ...                 return None, (Sync((worker,)), Proceed((worker,)))
    ...         return None, ()
    >>> Alone().decide(None, Report(worker=1, clock=1, time_s=0.1))[1][1]
    Proceed(workers=(1,), exchange='gradients', settings=None, shares=None)
    """

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""

    def __init_subclass__(cls, **options: Any) -> None:
        """A class that extends a steady policy may decide otherwise: it is steady only if it says so itself."""
        super().__init_subclass__(**options)
        if "__post_init__" in vars(cls):
            cls.__post_init__ = checked(vars(cls)["__post_init__"])  # type: ignore[attr-defined]
        if "traits" in vars(cls):
            cls.traits = declared(cls, vars(cls)["traits"])  # type: ignore[method-assign]
        if not callable(cls.bounds):
            raise SpecError(
                f"{cls.__name__}.bounds must be a method that returns Bounds(...) but is {shown(cls.bounds)}"
            )
        inherited: Any = cls.traits
        if "traits" not in vars(cls) and isinstance(inherited, Traits) and inherited.steady:
            cls.traits = replace(inherited, steady=False)  # type: ignore[method-assign, assignment]

    @property
    def traits(self) -> Traits:
        """What it needs from a driver; a subclass that wraps no other policy sets a class variable."""
        return Traits()

    @abstractmethod
    def init(self, cluster: Cluster) -> State:
        """State before anyone has joined."""

    @abstractmethod
    def decide(self, state: State, event: Event) -> tuple[State, Decisions]:
        """What to do after `event`, and the state to be called with next."""

    def bounds(self, cluster: Cluster) -> Bounds:
        """What this policy promises on `cluster`; nothing unless a subclass says so."""
        return Bounds()

    def stages(self, cluster: Cluster) -> "tuple[Stage, ...]":
        """The policies that follow one another, if that is all that this policy is; each can then run in a placement of
        its own. None unless a subclass says so.
        """
        return ()

    @property
    def counts_shares(self) -> bool:
        """Whether it counts shares of the whole workload, which a job only knows with the number of its epochs."""
        stages = self.stages(Cluster(1))
        return any(stage.end_samples < math.inf or stage.policy.counts_shares for stage in stages)

    def figures(self, state: State) -> dict[str, float]:
        """What `state` has to show of the policy at work, by name, for reports; nothing unless a subclass says so."""
        return {}

    def in_force(self, state: State) -> "Policy[Any]":
        """The policy that is in force; a change of it is a switch, which may cost the cluster time."""
        return self

    @property
    def recorded(self) -> str:
        """The spec for a trace, which replays to the same decisions; only a policy that shows less has another one."""
        return self.spec

    def remark(self, state: State) -> str:
        """What it has done last that a reader of the log wants to know, and why, in one line; empty if nothing."""
        return ""

    @property
    def spec(self) -> str:
        """The canonical spec: the first field, unless it is a limit or a text that is none by default, and what else
        differs.

        >>> from polyrhythm.policies import parse_policy
        >>> parse_policy("ssp:s=3").spec, parse_policy("balanced").spec, parse_policy("rlp:only=h").spec
        ('ssp:3', 'balanced', 'rlp:only=h')
        """
        given = [(f.name, getattr(self, f.name), f.default) for f in fields(self)]
        first = [text(value) for _, value, default in given[:1] if value != default or value not in ("", math.inf)]
        others = [f"{name}={text(value)}" for name, value, default in given[1:] if value != default]
        arguments = ",".join(first + others)
        name = name_of(self)
        return f"{name}:{arguments}" if arguments else name


def declared(cls: type[Policy[Any]], traits: Any) -> Any:
    """What a class says of its traits; those of a property are looked at when they are asked for."""
    if isinstance(traits, Traits):
        return traits
    if isinstance(traits, property) and traits.fget is not None:
        return property(looked_at(traits.fget), doc=traits.__doc__)
    if hasattr(traits, "__get__") and not isinstance(traits, (property, FunctionType)):
        return traits  # as functools.cached_property
    raise SpecError(f"{cls.__name__}.traits must be Traits(...), or a property that gives them, but is {shown(traits)}")


def looked_at(traits: Callable[[Any], Any]) -> Callable[[Any], Traits]:
    """A property's function, for traits and nothing else."""

    @wraps(traits)
    def get(policy: Any) -> Traits:
        try:
            found = traits(policy)
        except UsageError:
            raise
        except may_raise() as error:
            raise PolicyError(f"policy {name_of(policy)} raised {shown(error)} in traits{line_of(error)}") from error
        if not isinstance(found, Traits):
            raise PolicyError(
                f"policy {name_of(policy)} broke its contract: traits must be Traits(...) but is {shown(found)}"
            )
        return found

    return get


@dataclass(frozen=True)
class Supervisor(Policy[State]):
    """A policy that puts others in force while the job runs.

    Who has a placement for each kind of policy runs the one that is `wanted` itself: it shows `observe` every event
    with what was decided, and goes over when everybody can be brought to a stop. Everyone else calls `decide`, which
    does the same.
    """

    @abstractmethod
    def wanted(self, state: State) -> Policy[Any]:
        """The policy that is to be in force from the next occasion on."""

    @abstractmethod
    def observe(self, state: State, policy: Policy[Any], event: Event, decisions: Decisions) -> State:
        """What is known after an event, and after what `policy`, which is in force, has decided about it.

        Each policy that comes into force is told of everyone as `Joined`, and nobody of those whom the one before had.
        """

    def keeps(self, state: State) -> bool:
        """Whether what the job has learned is to be kept as the policy that is wanted comes into force, or just has."""
        return False

    def goes_back(self, state: State) -> bool:
        """Whether the job goes back to what was kept last as the policy that is wanted comes into force, or just has.

        The samples since are handed out again, as far as they are of the epoch under way.
        """
        return False

    def resumed(self, state: State) -> State:
        """What is known where a job goes on from a checkpoint: another clock runs, and nothing is under way."""
        return state

    @abstractmethod
    def bar(self, state: State, policy: Policy[Any], reason: str) -> State:
        """What is known once the driver has said that it cannot run this policy, which is not to be tried again."""


@dataclass(frozen=True, slots=True)
class Part:
    """A policy and the share of the workload that it is given; as a spec ``(ssp:3)@0.5``, without a share the rest."""

    policy: Policy[Any]
    share: float | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """A policy in force until so many samples are applied (inf: to the end); then it may drop what is in flight."""

    policy: Policy[Any]
    end_samples: float = math.inf
    drops: bool = False


def all_stages(policy: Policy[Any], cluster: Cluster) -> tuple[Stage, ...]:
    """As `Policy.stages`, with the stages of a sequence within a sequence in its place, as far as its own goes."""
    every: list[Stage] = []
    for stage in policy.stages(cluster):
        begin = every[-1].end_samples if every else 0.0
        within = [each for each in all_stages(stage.policy, cluster) if each.end_samples > begin] or [stage]
        earlier = [each for each in within if each.end_samples < stage.end_samples]
        last = next(each for each in (*within, stage) if each.end_samples >= stage.end_samples)
        every += [*earlier, replace(stage, policy=last.policy)]
    return tuple(every)


def text(value: Any) -> str:
    """A field's value as a spec writes it.

    >>> text(2.0), text(math.inf), text(0.5)
    ('2', 'inf', '0.5')
    """
    if isinstance(value, Policy):
        return f"({value.spec})"
    if isinstance(value, tuple):
        return ",".join(map(text, value))
    if isinstance(value, Part):
        name = f"({value.policy.spec})" if ":" in value.policy.spec else value.policy.spec
        return name if value.share is None else f"{name}@{text(value.share)}"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
