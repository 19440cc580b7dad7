"""How a session is opened once the warm-up step has shown what the script trains, and how."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from polyrhythm.errors import RefusalError, UsageError
from polyrhythm.runtime.collectives.attending.scaling import EAR
from polyrhythm.runtime.script.data.alone import keep_quiet
from polyrhythm.runtime.script.data.handed import HandedData
from polyrhythm.runtime.script.data.loaders import length_of
from polyrhythm.runtime.script.data.own_data import COMPARED, LOOKED_UP, OwnData, OwnReading, promise_of
from polyrhythm.runtime.script.data.passes import Pass
from polyrhythm.runtime.script.epochs import Planned, loop_number, planned_epochs
from polyrhythm.runtime.script.notices import refuse, tell
from polyrhythm.runtime.script.training.dealt_steps import DealtSteps
from polyrhythm.runtime.script.training.equal_start import check_equal
from polyrhythm.runtime.script.training.joint_step import trained_by
from polyrhythm.runtime.script.training.own_steps import OwnSteps
from polyrhythm.runtime.script.training.script_facts import ScriptFacts
from polyrhythm.runtime.script.training.session import ScriptSession
from polyrhythm.runtime.script.training.warm_up import WarmUpStep, watch
from polyrhythm.runtime.script.training.warm_up_steps import WarmUpSteps
from polyrhythm.runtime.script.wrapper import Lane, is_wrapper
from polyrhythm.runtime.wire.config_sources import LOOP_FROM
from polyrhythm.runtime.worker.optimizers import JointOptimizer

MADE_LATE = "another optimizer steps for the first time; make all before the first step, each for parameters of its own"
NOT_FOUND = (
    "another optimizer steps for the first time, and its parameters are of no model that was called before the first "
    "step; call models themselves, not their forward(), and one that trains later once before, under torch.no_grad()"
)
SHARED = (
    "another optimizer steps parameters of one that has stepped, and a policy has one optimizer for each; make it "
    "between two epochs, after the last step of the other: then it has a training of its own. Or change the lr instead"
)


RETURNS = (
    "an optimizer of an earlier training steps again, and what was made since, outside of its loop, is another "
    "training by now, such as that of a probe; train that after the last epoch of the first one, or in another script"
)
COPIED = (
    "what is trained is a copy of a DistributedDataParallel, and a copy exchanges nothing here; wrap a copy of the "
    "module: DistributedDataParallel(copy.deepcopy(model.module))"
)
COPIED_OPTIMIZER = (
    "an optimizer that is a copy of another steps within its training; keep copies of state_dict(), of the model "
    "and of the optimizer, and load these"
)
NOT_REACHED = (
    "the loop compares the number of its mini-batch with its loader's length, which a slow worker does not reach under "
    "policies whose workers make steps of their own; do it after the loop"
)
UNWRAPPED = (
    "the optimizer trains parameters outside of DistributedDataParallel, which each rank would have for itself under "
    "torchrun; put them into the module that is wrapped"
)
JOINED = (
    "model.join(), and ranks read their own data, which may be of unequal lengths: torchrun goes on with zeros in the "
    "place of the gradients of a rank that has no more, a policy with the mean of the others. Leave join() out for "
    "that, or read by a DistributedSampler, which gives all ranks equally many mini-batches"
)


def disjoint(
    trained: Iterable[Optimizer], others: Iterable[Optimizer], warm_up: WarmUpStep, lanes: Sequence[Lane]
) -> list[Optimizer]:
    """The optimizers that have stepped, and others that may: for parameters of their own in models that are known.

    Those are what is wrapped, and what was called. Without a wrapper, tensors that belong to no model are trained, too.
    """
    found = list(trained)
    taken = {p for each in found for group in each.param_groups for p in group["params"]}
    wrapped = wrapped_by(lanes)
    for each in others:
        own = {p for group in each.param_groups for p in group["params"]}
        outside = not lanes and not any(isinstance(p, nn.Parameter) for p in own)
        if own.isdisjoint(taken) and (outside or own <= wrapped or warm_up.has_seen(each)):
            found.append(each)
            taken |= own
    return found


def wrapped_by(lanes: Iterable[Lane]) -> set[nn.Parameter]:
    return {p for lane in lanes for p in lane.module.parameters()}


def why_not(late: Optimizer, session: ScriptSession) -> str:
    """Why this, which steps for the first time, is in no training."""
    if not set(trained_by(late)).isdisjoint(session.parameters):
        return SHARED
    return MADE_LATE if late in session.later else NOT_FOUND


def lanes_of(optimizer: Optimizer, lanes: Iterable[Lane]) -> list[Lane]:
    """The wrappers of what this optimizer trains; all are closed, and the others have no buckets any more."""
    wanted = {p for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    trained = []
    for lane in lanes:
        lane.close()
        if wanted.isdisjoint(lane.module.parameters()):
            lane.forget_buckets()
        else:
            trained.append(lane)
    return trained


def check_wrapped(optimizer: Optimizer, called: Iterable[nn.Module], lanes: Iterable[Lane], place: str) -> None:
    """What an optimizer trains is in the script's wrappers as a whole, or not at all, and in no copy of one."""
    trained = set(trained_by(optimizer))
    copies = (each for each in called if is_wrapper(each) and each._lane is None)
    if any(not trained.isdisjoint(each.parameters()) for each in copies):
        raise refuse(COPIED, place)
    wrapped = wrapped_by(lanes)
    if not (trained.isdisjoint(wrapped) or trained <= wrapped):
        raise refuse(UNWRAPPED, place)


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


OpenSession: TypeAlias = Callable[[bool], ScriptSession]
"""Told whether the data have a length."""


def open_session(
    script: ScriptFacts, warm_up: WarmUpSteps, called: Callable[[bool, Any], None], measured: bool
) -> ScriptSession:
    """A session for what the script's optimizers train, in place of the warm-up; other models' lanes are dropped.

    Args:
        script: whose session it is.
        warm_up: what has been seen; its optimizers are those of the session from now on.
        called: told of the model's forward passes.
        measured: whether the data have a length.
    """
    seen = warm_up.seen
    others = [each for each in script.optimizers if each not in script.trained_before]
    optimizers = disjoint(warm_up.optimizers, others, seen, script.lanes)
    warm_up.optimizers = dict.fromkeys(optimizers)
    optimizer = optimizers[0] if len(optimizers) == 1 else JointOptimizer(optimizers)
    check_wrapped(optimizer, seen.called, script.lanes, seen.stepped_at)
    script.lanes[:] = lanes_of(optimizer, script.lanes)
    if script.distributed and not script.lanes:
        check_equal(optimizers, script.trainings, seen.stepped_at)
    session = entered(script, optimizer, model_of(optimizer, script.lanes, seen, called), seen, measured)
    names = " and ".join(f"{type(each).__name__}.step" for each in optimizers)
    tell(f"{names} {'follow' if len(optimizers) > 1 else 'follows'} the policy", seen.stepped_at)
    if not (script.distributed or script.follows):
        keep_quiet(script.rank, script.files)
    return session


def entered(
    script: ScriptFacts, optimizer: Optimizer, model: nn.Module, seen: WarmUpStep, measured: bool
) -> ScriptSession:
    EAR.tried = True  # in the warm-up
    moving, changes = seen.moving(model), seen.changed
    seen.close(script.compiles and script.distributed)
    try:
        planned = planned_epochs()
        told = arguments_of(planned), moving, script.objections, script.trainings
        session = ScriptSession(model, optimizer, script.lanes, *told)
        session.changes, session.loads, session.distributed = changes, script.loads, script.distributed
        session.measured = measured
        session.__enter__()
        if planned is not None:
            tell_epochs(session, planned)
    except RefusalError:
        raise
    except UsageError as error:
        raise refuse(str(error), seen.stepped_at) from error
    return session


def arguments_of(planned: Planned | None) -> dict[str, int]:
    """What the loop says to the job."""
    if planned is None:
        return {}
    return {"epochs": planned.epochs, **({} if planned.first is None else {LOOP_FROM: planned.first})}


def tell_epochs(session: ScriptSession, planned: Planned) -> None:
    """Of which epochs shares are, where the loop may begin with the epoch of a snapshot."""
    first = session.origin(planned.first)
    if session.begins_midway(planned.first):
        tell(f"no checkpoint says with which epoch the job began: its epoch 0 is epoch {first} of the loop")
    if session.asked.counts_shares:
        since = f", from epoch {first} of the loop on" if first else ""
        tell(f"{session.policy} counts shares of {session.epochs} epochs{since}", planned.place)


def begin_dealt(open_: OpenSession, script: ScriptFacts, warm_up: WarmUpSteps, run: Pass, batches: int) -> DealtSteps:
    """The job deals out the training loader's data, `batches` of every worker after the start of the epoch."""
    place = script.loaders.place(run.loader)
    script.dealing.check_begin(batches, place)
    session = open_(True)
    first, counted_from = session.place_of(warm_up.epoch, loop_number())
    where = {"first_epoch": first, "counted_from": counted_from}
    loader = session.take_over(run, script.dealing, place, batches, script.distributed, warm_up.parts, where)
    tell("the training loader's samples are dealt out by the job", place)
    if run.compared and script.distributed:
        tell(NOT_REACHED, run.compared)
    opened_at = loader.steps_to(batches // warm_up.parts)
    follow_schedules(script, session, stretched=script.workers > 1 and not script.distributed)
    steps = DealtSteps(session, script.loaders, loader, warm_up.parts, opened_at)
    steps.start_epoch(run)
    return steps


def begin_own(
    open_: OpenSession,
    script: ScriptFacts,
    warm_up: WarmUpSteps,
    run: Pass | None,
    handed: HandedData,
    outlives: Callable[[Pass], bool],
) -> OwnSteps:
    """The script goes on to read its data itself, after `run` if its steps are made from a loader of each rank.

    The loop may outlive such a pass.
    """
    place = warm_up.seen.stepped_at if run is None else script.loaders.place(run.loader)
    script.dealing.check_own(place)
    session = open_(run is not None and length_of(run.loader) is not None)
    split = 1 if script.distributed or run is None else script.workers
    tell(promise_of(run, split, handed.agreed, handed.some_only), place)
    if run is not None and run.looked_up and split == 1:
        tell(LOOKED_UP, run.looked_up)
    elif run is not None and run.compared and split == 1:
        tell(COMPARED, run.compared)
    data = counted(session, warm_up, run, {"workers": script.workers, "stretch": split})
    reading = OwnReading(data, outlives, parts=warm_up.parts, rank=script.rank, split=split)
    if run is not None:
        for each in warm_up.passes:
            each.steps = run.steps
        reading.take_over([run, *warm_up.passes], script.loaders)
    script.schedules.left_alone = split == 1
    follow_schedules(script, session, stretched=split > 1)
    return OwnSteps(session, script.loaders, reading, run, handed.agreed)


def counted(session: ScriptSession, warm_up: WarmUpSteps, run: Pass | None, counts: dict[str, int]) -> OwnData:
    """What counts the samples of steps that are made from this pass, or from no loader."""
    number = loop_number() if run is not None else None
    first, counted_from = session.place_of(warm_up.epoch, number, drawn=run is None)
    size = (run.loader.batch_size or 1) * warm_up.parts if run is not None else 1
    samples = warm_up.seen.samples or size
    return session.count(**counts, batch_size=samples, first_epoch=first, counted_from=counted_from)


def follow_schedules(script: ScriptFacts, session: ScriptSession, stretched: bool) -> None:
    session.at_end = script.schedules.follow
    script.schedules.settle(stretched)
