"""What cannot be adapted is refused with the script's line and a remedy."""

from pathlib import Path

import pytest

from polyrhythm.errors import RefusalError
from polyrhythm.runtime.script.patches import within_group
from tests.runtime.script.runs import SCRIPTS, try_adapted


def line_of(text: str, script: str = "odd.py") -> int:
    lines = (SCRIPTS / script).read_text(encoding="utf-8").splitlines()
    (number,) = (number for number, line in enumerate(lines, 1) if text in line)
    return number


REFUSED = {
    "own optimizer": (
        "scaler.scale(loss).backward()",
        "parameters have changed without a step of an optimizer of torch.optim; what a script, or an optimizer that is "
        "none of torch's, changes by itself cannot follow a policy; let one of torch.optim make the steps",
    ),
    "one step of its own": (
        "scaler.scale(loss).backward()",
        "1 backward pass was made without a step of an optimizer",
    ),
    "all_reduce": (
        "dist.all_reduce(next(",
        "all_reduce inside the step loop has no common value under asp",
    ),
    "by hand": ("# of gradients", "all_reduce inside the step loop has no common value under asp"),
    "weighed": (
        "# a factor of the loss",
        "all_reduce inside the step loop has no common value under asp",
    ),
    "contrast": ("dist.all_gather([out", "all_gather inside the step loop has no common value under asp"),
    "broadcast": ("dist.broadcast(", "broadcast inside the step loop has no common value under asp"),
    "scheduler": ("    scheduler.step()", "StepLR.step inside the step loop, but not with every step"),
    "fraction": ("restarts.step(", "CosineAnnealingWarmRestarts.step with an argument inside the step loop"),
    "plateau": ("plateau.step(", "ReduceLROnPlateau.step with an argument inside the step loop"),
    "LBFGS": ("optimizer.step(*", "LBFGS calls its closure several times a step"),
    "Ascent": ("loss = closure()", "Ascent calls its closure in the middle of its step"),
    "functional": ("# of torch.func", "a step with gradients of torch.func"),
    "ZeRO": (
        "ZeroRedundancyOptimizer(",
        "ZeroRedundancyOptimizer shards the optimizer's state, but a policy needs whole replicas; make the optimizer "
        "that it wraps (optimizer_class) by itself, as in torch.optim.Adam(model.parameters())",
    ),
    "process_group": ("DistributedDataParallel(model, process", "a process_group of its own"),
    "two optimizers": ("optimizer.step(*", "two optimizers have the same parameter; give each parameter to one"),
    "FSDP": ("    FullyShardedDataParallel(model)", "FullyShardedDataParallel shards parameters"),
    "fully_shard": ("    fully_shard(model)", "fsdp.fully_shard shards parameters"),
    "parallelize": ("    parallelize_module(model", "parallelize_module splits the model"),
    "mixed precision": ("mixed_precision=torch", "DistributedDataParallel with mixed_precision exchanges gradients by"),
    "no group": ("DistributedDataParallel(model, process", "without init_process_group; call it first"),
    "Join": ("with Join([model])", "Join needs unequal numbers of steps in synchronous mode"),
    "fused": ("scaler.step(optimizer)", "a GradScaler with a fused optimizer hides the true gradients"),
    "by its forward": (
        "# of a model that was not called",
        "its parameters are of no model that was called before the first step; call models themselves",
    ),
    "again": ("# of the same mini-batch", "optimizer.step without a mini-batch of the training loader"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_script_that_cannot_be_adapted_is_refused_with_its_line(tmp_path: Path, what: str) -> None:
    text, reason = REFUSED[what]
    run = try_adapted(tmp_path, "odd.py", what, policy="asp", ranks=1)
    assert run.codes == [2], run.stderr()
    last = run.stderr().splitlines()[-1]
    assert last.startswith("polyrhythm: ")
    assert f"odd.py:{line_of(text)}: " in last
    assert reason in last


def test_dataparallel_over_several_devices_is_refused(tmp_path: Path) -> None:
    run = try_adapted(tmp_path, "odd.py", "DataParallel", policy="asp")
    assert run.codes == [2, 2]
    assert (
        "DataParallel has one process for all devices, but a policy needs one worker for each; leave it out"
        in run.stderr()
    )


def test_processes_of_all_groups_are_not_those_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    make = within_group(lambda *arguments: arguments)
    assert make("cpu", (2,)) == ("cpu", (2,))
    with pytest.raises(RefusalError, match="init_device_mesh of 4 processes, and a group has 2"):
        make("cpu", (2, 2))


def test_a_refusal_that_the_script_catches_is_said_at_its_end(tmp_path: Path) -> None:
    run = try_adapted(tmp_path, "caught.py", policy="asp", ranks=1)
    assert run.codes == [0], run.stderr()
    (said,) = (line for line in run.stderr().splitlines() if line.endswith(" (the script has caught this and gone on)"))
    assert f"caught.py:{line_of('dist.broadcast(', 'caught.py')}: broadcast inside the step loop" in said
