"""How a session is opened once the warm-up step has shown what the script trains, and how."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from polyrhythm.errors import RefusalError, UsageError
from polyrhythm.runtime.script.data.loaders import length_of
from polyrhythm.runtime.script.data.own_data import LOOKED_UP, OwnReading, promise_of
from polyrhythm.runtime.script.data.passes import Pass
from polyrhythm.runtime.script.epochs import loop_number, planned_epochs
from polyrhythm.runtime.script.notices import refuse, tell
from polyrhythm.runtime.script.session import ScriptSession
from polyrhythm.runtime.script.warm_up import WarmUpStep, watch
from polyrhythm.runtime.script.wrapper import Lane
from polyrhythm.runtime.worker.optimizers import JointOptimizer

MADE_LATE = "another optimizer steps for the first time; make all before the first step, each for parameters of its own"
NOT_FOUND = (
    "another optimizer steps for the first time, and its parameters are of no model that was called before, or another "
    "optimizer's; call models themselves, not their forward(), and give each parameter to one optimizer"
)


def disjoint(
    trained: Iterable[Optimizer], others: Iterable[Optimizer], warm_up: WarmUpStep, loose: bool
) -> list[Optimizer]:
    """The optimizers that have stepped, and others that may: for parameters of their own in the same models.

    If `loose`, also those for tensors that belong to no model.
    """
    found = list(trained)
    taken = {p for each in found for group in each.param_groups for p in group["params"]}
    for each in others:
        own = {p for group in each.param_groups for p in group["params"]}
        outside = loose and not any(isinstance(p, nn.Parameter) for p in own)
        if own.isdisjoint(taken) and (outside or warm_up.has_seen(each)):
            found.append(each)
            taken |= own
    return found


def lanes_of(optimizer: Optimizer, lanes: Iterable[Lane]) -> list[Lane]:
    """The wrappers of what this optimizer trains; all are closed."""
    wanted = {p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    for lane in lanes:
        lane.close()
    return [lane for lane in lanes if not wanted.isdisjoint(lane.module.parameters())]


def renew(lanes: Iterable[Lane], optimizers: Iterable[Optimizer]) -> None:
    """A session is over: what these optimizers train is exchanged as torch does, until the next one."""
    wanted = {p for each in optimizers for group in each.param_groups for p in group["params"]}
    for lane in lanes:
        if lane.inner is None and not wanted.isdisjoint(lane.module.parameters()):
            assert dist.group.WORLD is not None, "the script has formed one"
            lane.open(dist.group.WORLD)


def model_of(
    optimizer: Optimizer, lanes: list[Lane], warm_up: WarmUpStep, called: Callable[[bool, Any], None]
) -> nn.Module:
    """What this optimizer trains; without a wrapper, `called` is told of its forward passes."""
    if len(lanes) == 1:
        return lanes[0].module
    if lanes:
        return nn.ModuleList(lane.module for lane in lanes)
    model = warm_up.model_of(optimizer)
    for module in model if isinstance(model, nn.ModuleList) else [model]:
        watch(module, called)
    return model


def open_session(
    optimizers: list[Optimizer],
    lanes: list[Lane],
    warm_up: WarmUpStep,
    called: Callable[[bool, Any], None],
    trainings: int = 0,
) -> ScriptSession:
    """A session for what these optimizers train, in place of the warm-up.

    Args:
        optimizers: see `disjoint`.
        lanes: the exchanges of all wrappers; those of other models are dropped.
        warm_up: what has been seen.
        called: told of the model's forward passes.
        trainings: that are over.
    """
    optimizer = optimizers[0] if len(optimizers) == 1 else JointOptimizer(optimizers)
    lanes[:] = lanes_of(optimizer, lanes)
    model = model_of(optimizer, lanes, warm_up, called)
    moving, changes = warm_up.moving(model), warm_up.changed
    warm_up.close()
    try:
        planned = planned_epochs()
        arguments = {"epochs": planned.epochs} if planned else {}
        session = ScriptSession(model, optimizer, lanes, arguments, moving, trainings)
        session.changes = changes
        session.__enter__()
        if planned and session.counts_shares:
            tell(f"{session.policy} counts shares of {planned.epochs} epochs", planned.place)
    except RefusalError:
        raise
    except UsageError as error:
        raise refuse(str(error), warm_up.stepped_at) from error
    names = " and ".join(f"{type(each).__name__}.step" for each in optimizers)
    tell(f"{names} {'follow' if len(optimizers) > 1 else 'follows'} the policy", warm_up.stepped_at)
    return session


def own_reading(
    session: ScriptSession,
    run: Pass | None,
    place: str,
    seen: int,
    counts: Mapping[str, int],
    parts: int,
    rank: int,
) -> OwnReading:
    """What follows the data that a script reads for itself.

    Args:
        session: of the script.
        run: the pass that its steps are made from; None if they are made from no loader.
        place: where the script has made that loader, or its first step.
        seen: epochs that it has gone through.
        counts: see `OwnData`; a `batch_size` of 0 is not known.
        parts: mini-batches of a step.
        rank: of this worker.
    """
    if session.counts_shares and (run is None or length_of(run.loader) is None):
        raise refuse(f"policy {session.policy} counts shares of epochs whose length nobody knows", place)
    tell(promise_of(run, counts["stretch"]), place)
    if run is not None and run.looked_up and counts["stretch"] == 1:
        tell(LOOKED_UP, run.looked_up)
    first, counted_from = session.place_of(seen, loop_number() if run is not None else None)
    size = (run.loader.batch_size or 1) * parts if run is not None else 1
    known = {**counts, "batch_size": counts["batch_size"] or size}
    data = session.count(**known, first_epoch=first, counted_from=counted_from)
    return OwnReading(data, parts=parts, rank=rank, split=counts["stretch"])
