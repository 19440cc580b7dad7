"""What a script's model and optimizer hold, as tensors and numbers by name, and back into them."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from polyrhythm.errors import UsageError
from polyrhythm.runtime.checkpoint.folder import make_partial
from polyrhythm.runtime.checkpoint.plain_values import Aside, plain, revived
from polyrhythm.runtime.checkpoint.tensor_file import FileMark, mark_of, read_tensors, write_tensors
from polyrhythm.training.optimizer import number_keys, placed

MODEL, OPTIMIZER, NUMBERS = "model.safetensors", "optimizer.safetensors", "numbers.json"
VELOCITY = "outer.velocity"
"""Name of the outer optimizer's velocity among the optimizer's tensors."""

EXTRA = "_extra_state"
"""Torch's name, in a state_dict, of what a module keeps beside its tensors."""

TAKES_BACK = "a set_extra_state of its module, which a checkpoint cannot keep; it begins anew after one"

MOVED = ("lr", "momentum", "betas")
"""Settings that a scheduler changes as the training goes on; it keeps the script's own rate as `initial_lr`."""


class Keepable(Protocol):
    """Something of the script that is kept beside model and optimizer, such as a scheduler."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


class ReplicaState(NamedTuple):
    """Tensors on the CPU that nobody else changes.

    Args:
        model: parameters and buffers by the model's own names.
        optimizer: its state by parameter and key, and `VELOCITY` if there is one.
        numbers: what of the optimizer's state are no tensors, the settings of its groups, and what else is kept.
        lost: what cannot be kept, a line each.
    """

    model: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    numbers: dict[str, Any]
    lost: tuple[str, ...] = ()

    def write(self, folder: Path) -> dict[str, FileMark]:
        """Write the files of a checkpoint, and wait until the disk has them.

        Raises:
            OSError: if one cannot be written, as on a full disk.
        """
        make_partial(folder)
        marks = {name: write_tensors(folder / name, tensors) for name, tensors in self._tensors()}
        with (folder / NUMBERS).open("w", encoding="utf-8") as stream:
            json.dump(self.numbers, stream)
            stream.flush()
            os.fsync(stream.fileno())
        return {**marks, NUMBERS: mark_of(folder / NUMBERS)}

    def _tensors(self) -> tuple[tuple[str, dict[str, Tensor]], ...]:
        return (MODEL, self.model), (OPTIMIZER, self.optimizer)


def read_state(folder: Path) -> ReplicaState:
    """What `ReplicaState.write` has written."""
    try:
        numbers = json.loads((folder / NUMBERS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read checkpoint {folder}: {error}; --checkpoint needs a folder that all hosts of the job share"
        ) from None
    return ReplicaState(read_tensors(folder / MODEL), read_tensors(folder / OPTIMIZER), numbers)


def capture(
    model: nn.Module, optimizer: Optimizer, velocity: Tensor | None, kept: Mapping[str, Keepable]
) -> ReplicaState:
    """A copy of everything as it is now."""
    lost: list[str] = []
    aside = Aside()
    tensors, extra = parts_of_model(model, lost, aside)
    state = dict(optimizer_tensors(model, optimizer))
    if velocity is not None:
        state[VELOCITY] = copied(velocity)
    entries = ((name, each) for name, each in optimizer_entries(model, optimizer) if not isinstance(each, Tensor))
    scalars = plain_ones(((name, each) for name, each in entries if each is not None), lost, " of the optimizer", aside)
    groups = [settings_of(group, lost) for group in optimizer.param_groups]
    numbers = {
        "optimizers": kinds_of(optimizer),
        "state": scalars,
        "groups": groups,
        "kept": {name: plain_object(name, one, lost, aside) for name, one in kept.items()},
        "extra": extra,
    }
    state |= {name: copied(value) for name, value in aside.tensors.items()}
    return ReplicaState(tensors, state, numbers, tuple(dict.fromkeys(lost)))


def parts_of_model(model: nn.Module, lost: list[str], aside: Aside) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Its tensors, and what modules keep beside them; `lost` gets a line for what else it has."""
    modules, whole = extra_states(model), model.state_dict()
    tensors = {name: copied(value) for name, value in whole.items() if isinstance(value, Tensor)}
    others = {name: value for name, value in whole.items() if not isinstance(value, Tensor)}
    extra = plain_ones(((name, value) for name, value in others.items() if name in modules), lost, "", aside)
    lost += [f"{name} is neither a tensor nor taken back by {TAKES_BACK}" for name in others if name not in modules]
    return tensors, extra


def apply_model(state: ReplicaState, model: nn.Module, where: str) -> None:
    """Give the model what was kept; `where` says of which checkpoint, for messages."""
    modules, extra = extra_states(model), dict(state.numbers.get("extra", {}))
    own = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    own = {name: value for name, value in own.items() if name not in modules}
    kept = {name: value for name, value in state.model.items() if name not in modules}
    for name in extra.keys() - modules.keys():
        raise UsageError(
            f"{where} was made with another model: {name} is kept there and missing here; give another --checkpoint"
        )
    for name in {**own, **kept}:
        ours, theirs = own.get(name), kept.get(name)
        if ours is None or theirs is None or (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
            raise UsageError(
                f"{where} was made with another model: {name} is {shown(theirs)} there and {shown(ours)} here; "
                "give another --checkpoint"
            )
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(kept[name])
    for name, module in modules.items():
        if name in extra:
            module.set_extra_state(revived(extra[name], state.optimizer))
        elif name in state.model:
            module.set_extra_state(state.model[name].clone())


def extra_states(model: nn.Module) -> dict[str, nn.Module]:
    """Modules that take back what they keep beside their tensors, by its name in the state_dict."""
    return {
        f"{path}.{EXTRA}".removeprefix("."): module
        for path, module in model.named_modules(remove_duplicate=False)  # as a state_dict has each of its names
        if type(module).set_extra_state is not nn.Module.set_extra_state
    }


def check_optimizer(state: ReplicaState, optimizer: Optimizer, where: str) -> None:
    """Refuse what was kept of another kind of optimizer: its state means something else."""
    kept, here = state.numbers.get("optimizers"), kinds_of(optimizer)
    if kept is not None and kept != here:  # one of an earlier version does not say
        raise UsageError(
            f"{where} was made with {' and '.join(kept)}, and there is {' and '.join(here)} here; "
            "give another --checkpoint"
        )
    groups = state.numbers["groups"]
    if len(groups) != len(optimizer.param_groups):
        raise UsageError(
            f"{where} was made with {len(groups)} parameter groups, and there are {len(optimizer.param_groups)} here; "
            "give another --checkpoint"
        )


def kinds_of(optimizer: Optimizer) -> list[str]:
    return [type(part).__name__ for part in getattr(optimizer, "parts", (optimizer,))]


def apply_optimizer(state: ReplicaState, model: nn.Module, optimizer: Optimizer) -> None:
    """Give the optimizer what was kept: its state, and the settings of its groups."""
    parameters, groups = dict(model.named_parameters()), state.numbers["groups"]
    optimizer.state.clear()
    entries = list(kept_entries(state, parameters))
    single = number_keys(entries)
    for parameter, key, value in entries:
        if isinstance(value, Tensor):
            there = placed(value, parameter, key in single, optimizer)
        else:
            there = beside(revived(value, state.optimizer), parameter)
        optimizer.state[parameter][key] = there
    for group, settings in zip(optimizer.param_groups, groups, strict=True):
        group.update({key: like(value, group[key]) for key, value in settings.items() if key in group})


def beside(value: Any, parameter: Tensor) -> Any:
    """A value whose tensors, such as those of a list of past steps, are where the parameter is."""
    if isinstance(value, Tensor):
        return value.to(parameter.device)
    if isinstance(value, (list, tuple)):
        return type(value)(beside(each, parameter) for each in value)
    if isinstance(value, dict):
        return type(value)({key: beside(each, parameter) for key, each in value.items()})
    return value


def kept_entries(state: ReplicaState, parameters: Mapping[str, Tensor]) -> Iterator[tuple[Tensor, str, Any]]:
    """Parameter, key and value of what was kept of the optimizer's state."""
    for name, value in {**state.optimizer, **state.numbers["state"]}.items():
        owner, _, key = name.rpartition("/")
        if name != VELOCITY and owner in parameters:
            yield parameters[owner], key, value


def overruled(state: ReplicaState, optimizer: Optimizer, where: str) -> list[str]:
    """What the script has set otherwise than it was kept, a line each; what a scheduler moves is not."""
    lines = {}
    for group, settings in zip(optimizer.param_groups, state.numbers["groups"], strict=True):
        moved = MOVED if "initial_lr" in group and "initial_lr" in settings else ()
        for name in settings.keys() & settings_of(group, []).keys() - {*moved}:
            kept, own = like(settings[name], group[name]), group[name]
            if plain(kept) != plain(own):
                word = "lr" if name == "initial_lr" else name
                lines[name] = f"{word} {shown_setting(kept)} of {where} holds; {shown_setting(own)} is overruled"
    return [lines[name] for name in sorted(lines)]


def shown_setting(value: Any) -> str:
    """A setting as a script would write it.

    >>> shown_setting(0.1), shown_setting(torch.tensor(0.5)), shown_setting((0.9, 0.999)), shown_setting(False)
    ('0.1', '0.5', '(0.9, 0.999)', 'False')
    """
    value = value.tolist() if isinstance(value, Tensor) else value
    return f"{value:g}" if isinstance(value, float) else str(value)


def apply_kept(state: ReplicaState, kept: Mapping[str, Keepable]) -> None:
    for name, one in kept.items():
        if name in state.numbers["kept"]:
            one.load_state_dict(revived(state.numbers["kept"][name], state.optimizer))


def optimizer_entries(model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[str, Any]]:
    names: dict[Tensor, str] = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, entries in optimizer.state.items():
        if parameter in names:
            yield from ((f"{names[parameter]}/{key}", value) for key, value in entries.items())


def optimizer_tensors(model: nn.Module, optimizer: Optimizer) -> Iterator[tuple[str, Tensor]]:
    return ((name, copied(value)) for name, value in optimizer_entries(model, optimizer) if isinstance(value, Tensor))


def settings_of(group: Mapping[str, Any], lost: list[str]) -> dict[str, Any]:
    """What a parameter group has beside its parameters, such as its rate, which a scheduler may have changed."""
    values = ((key, value) for key, value in group.items() if key != "params" and value is not None)
    return plain_ones(((key, one.item() if is_scalar(one) else one) for key, one in values), lost, " of the optimizer")


def plain_ones(
    values: Iterable[tuple[str, Any]], lost: list[str], whose: str = "", aside: Aside | None = None
) -> dict[str, Any]:
    """Those values that can be kept, as JSON has them; `lost` gets a line for each other, and what it turns into."""
    found = {}
    for name, value in values:
        try:
            found[name] = plain(value, aside)
        except TypeError as error:
            lost.append(f"{name}{whose} is or has a {error}, which a checkpoint cannot keep; it begins anew after one")
            turned(name, aside)
        else:
            lost += turned(f"{name}{whose}", aside)
    return found


def turned(name: str, aside: Aside | None) -> list[str]:
    """What of the last value comes back as something else, a line each."""
    if aside is None:
        return []
    lines = [f"{name} is or has a {each}" for each in aside.turned]
    aside.turned.clear()
    return lines


def plain_object(name: str, one: Keepable, lost: list[str], aside: Aside) -> Any:
    try:
        found = plain(one.state_dict(), aside)
    except TypeError as error:
        raise UsageError(f"{name} has a {error} in its state_dict, which a checkpoint cannot keep") from None
    lost += turned(f"the state_dict of {name}", aside)
    return found


def is_scalar(value: Any) -> bool:
    return isinstance(value, Tensor) and not value.dim()


def copied(value: Tensor) -> Tensor:
    """On the CPU, in memory of its own."""
    return value.detach().to("cpu", copy=True).contiguous()


def like(value: Any, own: Any) -> Any:
    """A setting as the group has it: a pair as a tuple or a list, a rate that is a tensor as one."""
    value = revived(value)
    if isinstance(own, Tensor) and isinstance(value, (Tensor, int, float)):
        return value.to(own) if isinstance(value, Tensor) else torch.full_like(own, value)
    if is_scalar(value):
        return value.item()
    if isinstance(value, (list, tuple)) and isinstance(own, (list, tuple)):
        parts = map(like, value, own) if len(value) == len(own) else value
        return list(parts) if isinstance(own, list) else tuple(parts)
    return value


def shown(tensor: Tensor | None) -> str:
    return "missing" if tensor is None else f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
