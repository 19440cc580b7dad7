# mypy: ignore-errors
"""A tutorial's shape: a Trainer class, the optimizer made before the wrap, a look at the loader before each epoch."""

import argparse
import os

import torch
from torch.distributed import destroy_process_group, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler


class RandomData(Dataset):
    def __init__(self, samples):
        generator = torch.Generator().manual_seed(3)
        self.x = torch.randn(samples, 20, generator=generator)
        self.y = torch.randn(samples, 1, generator=generator)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, index):
        return self.x[index], self.y[index], index


class Trainer:
    def __init__(self, model, train_data, optimizer, out):
        self.gpu_id = int(os.environ["LOCAL_RANK"])
        self.model = DDP(model.to(self.gpu_id), device_ids=[self.gpu_id])
        self.train_data = train_data
        self.optimizer = optimizer
        self.out = out

    def _run_batch(self, source, targets):
        self.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(self.model(source), targets)
        loss.backward()
        self.optimizer.step()

    def _run_epoch(self, epoch):
        b_sz = len(next(iter(self.train_data))[0])
        print(f"[GPU{self.gpu_id}] epoch {epoch}, batch size {b_sz}, steps {len(self.train_data)}")
        self.train_data.sampler.set_epoch(epoch)
        for source, targets, index in self.train_data:
            print(*index.tolist(), file=self.out, end=" ")
            self._run_batch(source.to(self.gpu_id), targets.to(self.gpu_id))
        print(file=self.out)

    def train(self, epochs):
        for epoch in range(epochs):
            self._run_epoch(epoch)
            if self.gpu_id == 0:
                torch.save({"MODEL_STATE": self.model.module.state_dict(), "EPOCHS_RUN": epoch}, "snapshot.pt")


def main(epochs, samples, batch_size, workers):
    init_process_group(backend="nccl")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    torch.manual_seed(0)
    dataset, model = RandomData(samples), torch.nn.Linear(20, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
    sampler = DistributedSampler(dataset)
    loader = DataLoader(
        dataset, batch_size=batch_size, pin_memory=True, shuffle=False, sampler=sampler, num_workers=workers
    )
    with open(f"seen.{os.environ['RANK']}", "w") as out:
        Trainer(model, loader, optimizer, out).train(epochs)
    destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("epochs", type=int)
    parser.add_argument("--samples", type=int, default=96)
    parser.add_argument("--batch-size", type=int, default=8)
    parser.add_argument("--workers", type=int, default=0)
    args = parser.parse_args()
    main(args.epochs, args.samples, args.batch_size, args.workers)
