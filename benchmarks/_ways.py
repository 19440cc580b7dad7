"""What `unmodified.py` runs beside the example: bf16, a compiled model, a stream, and a script without a loader.

python benchmarks/_ways.py stream --epochs 3    # under torchrun or polyrhythm run
"""

import argparse
import time
from collections.abc import Callable, Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, TensorDataset


class Stream(IterableDataset[tuple[Tensor, Tensor]]):
    """Every nth sample of a data set."""

    def __init__(self, data: TensorDataset) -> None:
        self.data = data

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        indices = range(dist.get_rank(), len(self.data), dist.get_world_size())
        return (self.data[index] for index in indices)


def drawn(data: TensorDataset, batch_size: int) -> Iterator[list[Tensor]]:
    for _ in range(len(data) // (batch_size * dist.get_world_size())):
        indices = torch.randint(len(data), (batch_size,))
        yield [tensor[indices] for tensor in data.tensors]


def batches_of(way: str, data: TensorDataset, batch_size: int) -> Callable[[], Iterator[list[Tensor]]]:
    if way == "drawn":
        return lambda: drawn(data, batch_size)
    if way == "stream":
        stream = DataLoader(Stream(data), batch_size)
        return lambda: iter(stream)
    loader = DataLoader(data, batch_size, sampler=DistributedSampler(data))
    return lambda: iter(loader)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("way", choices=("bf16", "compiled", "stream", "drawn"))
    for name, value in (("epochs", 3), ("hidden", 2048), ("batch-size", 25), ("repeat", 1)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    samples = 1500 * args.repeat
    data = TensorDataset(torch.randn(samples, 64), torch.randint(10, (samples,)))
    kind = torch.bfloat16 if args.way == "bf16" else torch.float32
    model = nn.Sequential(nn.Linear(64, args.hidden), nn.ReLU(), nn.Linear(args.hidden, 10)).to(kind)
    wrapped = DistributedDataParallel(torch.compile(model) if args.way == "compiled" else model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    read = batches_of(args.way, data, args.batch_size)
    turns: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data)
    for epoch in range(args.epochs):
        turns.set_epoch(epoch)  # where `unmodified.py` lets the two jobs take turns
        start = time.perf_counter()
        for images, labels in read():
            optimizer.zero_grad()
            nn.functional.cross_entropy(wrapped(images.to(kind)).float(), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {time.perf_counter() - start:.4f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
