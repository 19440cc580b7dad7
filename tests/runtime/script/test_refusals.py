"""What cannot be adapted is refused with the script's line and a remedy."""

from pathlib import Path

import pytest

from tests.runtime.script.runs import SCRIPTS, try_adapted

LINES = (SCRIPTS / "odd.py").read_text(encoding="utf-8").splitlines()


def line_of(text: str) -> int:
    (number,) = (number for number, line in enumerate(LINES, 1) if text in line)
    return number


REFUSED = {
    "by hand": (".backward(retain_graph", "no step of an optimizer of torch.optim"),
    "iterable": ("DataLoader(Stream()", "an IterableDataset cannot be shared out"),
    "shuffle": ("shuffle=True", "the loader's RandomSampler cannot be shared out; use DistributedSampler"),
    "batch_sampler": ("DataLoader(data, batch_sampler", "a batch sampler of its own cannot be shared out"),
    "alone, weighted": ("sampler=WeightedRandomSampler(", "the loader's WeightedRandomSampler cannot be shared out"),
    "alone, replacement": ("replacement=True", "a RandomSampler with replacement"),
    "all_reduce": ("dist.all_reduce(", "allreduce inside the step loop, where workers under asp make steps of their"),
    "scheduler": ("    scheduler.step()", "StepLR.step inside the step loop, but not with every step"),
    "closure": ("optimizer.step(*", "optimizer.step with a closure"),
    "Adafactor": ("optimizer.step(*", "Adafactor"),
    "partial": ("optimizer.step(*", "the optimizer does not have"),
    "ZeRO": ("ZeroRedundancyOptimizer(", "ZeroRedundancyOptimizer shards"),
    "process_group": ("DistributedDataParallel(model, process", "a process_group of its own"),
    "second model": ("DistributedDataParallel(nn.Linear", "a second DistributedDataParallel"),
    "two optimizers": ("other.step()", "a second optimizer steps"),
    "mp.spawn": ("mp.spawn(child", "multiprocessing.spawn starts workers of its own"),
    "float64": ("optimizer.step(*", "float32"),
    "sparse": ("optimizer.step(*", "sparse gradients cannot be exchanged"),
    "twice": ("for number, x in enumerate(", "Twice does not deal out every sample of the data set once"),
    "FSDP": ("    FullyShardedDataParallel(model)", "FullyShardedDataParallel shards parameters"),
    "fully_shard": ("    fully_shard(model)", "fsdp.fully_shard shards parameters"),
    "parallelize": ("    parallelize_module(model", "parallelize_module splits the model"),
    "DataParallel": ("    nn.DataParallel(model)", "DataParallel has one process for all devices"),
    "mixed precision": ("mixed_precision=torch", "DistributedDataParallel with mixed_precision exchanges gradients by"),
    "no group": ("DistributedDataParallel(model, process", "without init_process_group; call it first"),
    "Join": ("with Join([model])", "Join needs unequal numbers of steps in synchronous mode"),
    "fused": ("scaler.step(optimizer)", "a GradScaler with a fused optimizer hides the true gradients"),
    "no loader": ("    optimizer.step()  # of nothing", "optimizer.step without a mini-batch of a DataLoader"),
    "again": ("# of the same mini-batch", "optimizer.step without a mini-batch of the training loader"),
    "ahead": ("optimizer.step(*", "reads ahead of its steps"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_script_that_cannot_be_adapted_is_refused_with_its_line(tmp_path: Path, what: str) -> None:
    text, reason = REFUSED[what]
    run = try_adapted(tmp_path, "odd.py", what, policy="asp", ranks=1)
    assert run.codes == [2], run.stderr()
    last = run.stderr().splitlines()[-1]
    assert last.startswith("polyrhythm: rank 0: ")
    assert f"odd.py:{line_of(text)}: " in last
    assert reason in last
