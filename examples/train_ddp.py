"""Train a small network on scikit-learn's digits with DistributedDataParallel; nothing here knows of Polyrhythm.

torchrun --standalone --nproc-per-node 2 examples/train_ddp.py --epochs 5
polyrhythm run --nproc-per-node 2 --policy asp examples/train_ddp.py --epochs 5
"""

# mypy: allow-untyped-calls
import argparse
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import ConcatDataset, DataLoader, DistributedSampler, TensorDataset


def load() -> tuple[TensorDataset, TensorDataset]:
    """1,500 images to learn from and 297 to be judged by."""
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    return TensorDataset(x[:1500], y[:1500]), TensorDataset(x[1500:], y[1500:])


def main() -> None:
    """Train; the first rank prints what every epoch has brought, and how long its steps took."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=25)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=1, help="times that an epoch goes over the images")
    parser.add_argument("--workers", type=int, default=0, help="processes that load data")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(1)
    images, held_out = load()
    data: ConcatDataset[tuple[Tensor, ...]] = ConcatDataset([images] * args.repeat)
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(data)
    loader = DataLoader(data, args.batch_size, sampler=sampler, num_workers=args.workers)
    model = nn.Sequential(nn.Linear(64, args.hidden), nn.ReLU(), nn.Linear(args.hidden, 10))
    ddp = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        start = time.perf_counter()
        for x, y in loader:
            optimizer.zero_grad()
            nn.functional.cross_entropy(ddp(x), y).backward()
            optimizer.step()
        seconds = time.perf_counter() - start
        if dist.get_rank() == 0:
            with torch.no_grad():
                x, y = held_out.tensors
                accuracy = (model(x).argmax(1) == y).float().mean().item()
            print(f"epoch {epoch}: accuracy {accuracy:.3f}, {seconds:.3f} s", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
