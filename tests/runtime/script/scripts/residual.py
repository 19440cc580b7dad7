# mypy: ignore-errors
"""What real scripts do: batch norm, two parameter groups, clipping, accumulation, barriers, evaluation, a scheduler."""

import argparse
import contextlib

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


class Net(nn.Module):
    def __init__(self, norm=True):
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.norm = nn.BatchNorm1d(8) if norm else nn.Identity()
        self.left, self.right = nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x, left=True):
        h = torch.relu(self.norm(self.stem(x)))
        return self.left(h) if left else self.right(h)


def make_data(samples, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 6, generator=generator)
    return TensorDataset(x, (x.sum(1) > 0).long(), torch.arange(samples))


def make_optimizer(model, lr):
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr)


def make_loader(data, sampler, args):
    return DataLoader(data, args.batch_size, sampler=sampler, num_workers=args.workers, drop_last=args.drop_last)


def train(model, loader, optimizer, scheduler, args, out):
    model.train()
    loss_sum = torch.zeros(1)
    for number, (x, y, index) in enumerate(loader):
        print(*index.tolist(), file=out, end=" ")
        last = (number + 1) % args.accumulate == 0 or (args.rest and number + 1 == len(loader))
        with contextlib.nullcontext() if last else model.no_sync():
            loss = nn.functional.cross_entropy(model(x, args.rank == 0 or not args.branches), y)
            (loss / args.accumulate).backward()
        loss_sum += loss.item()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            if args.per_step:
                scheduler.step()
        if args.log_every and (number + 1) % args.log_every == 0:
            dist.all_reduce(loss_sum)
    print(file=out)
    if not args.per_step:
        scheduler.step()
    return loss_sum


@torch.no_grad()
def evaluate(model, loader):
    model.eval()
    right = torch.zeros(1)
    for x, y, _ in loader:
        right += (model(x).argmax(1) == y).sum()
    return right


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--samples", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--rest", action="store_true")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--drop-last", action="store_true")
    parser.add_argument("--branches", action="store_true")
    parser.add_argument("--rebuild", action="store_true")
    parser.add_argument("--per-step", action="store_true")
    parser.add_argument("--log-every", type=int, default=0)
    parser.add_argument("--no-norm", action="store_true")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    args.rank = dist.get_rank()
    torch.manual_seed(args.rank)
    data, held_out = make_data(args.samples, 1), make_data(40, 2)
    sampler, eval_sampler = DistributedSampler(data, seed=4), DistributedSampler(held_out, shuffle=False)
    loader = make_loader(data, sampler, args)
    eval_loader = DataLoader(held_out, args.batch_size, sampler=eval_sampler, num_workers=args.workers)
    model = DistributedDataParallel(Net(not args.no_norm), find_unused_parameters=True)
    optimizer = make_optimizer(model, lr=0.02)
    steps = args.epochs * ((len(loader) + args.rest) // args.accumulate if args.per_step else 1)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=max(steps, 2))
    with open(f"seen.{args.rank}", "w") as out:
        for epoch in range(args.epochs):
            sampler.set_epoch(epoch)
            if args.rebuild:
                loader = make_loader(data, sampler, args)
            loss = train(model, loader, optimizer, scheduler, args, out)
            right = evaluate(model, eval_loader)
            dist.all_reduce(right)
            dist.all_reduce(loss)
            if args.rank == 0:
                alone = evaluate(model.module, DataLoader(held_out, 20))
                print(
                    epoch,
                    "loss",
                    f"{loss.item():.6f}",
                    "right",
                    int(right),
                    int(alone),
                    "rate",
                    scheduler.get_last_lr()[0],
                )
            dist.barrier()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, f"end.{args.rank}")
    if args.whole:
        torch.save(model, f"whole.{args.rank}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
