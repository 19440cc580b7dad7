# mypy: ignore-errors
"""A language model's trainer: devices by torch.accelerator, autocast and a GradScaler, one loop for both loaders."""

import os
import sys

import torch
from torch import nn
from torch.distributed import destroy_process_group, get_default_backend_for_device, init_process_group
from torch.nn.parallel import DistributedDataParallel as DDP  # noqa: N817
from torch.utils.data import DataLoader, Dataset, random_split
from torch.utils.data.distributed import DistributedSampler


class Windows(Dataset):
    def __init__(self, length, width):
        self.tokens = torch.randint(0, 9, (length + width,), generator=torch.Generator().manual_seed(2))
        self.length, self.width = length, width

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        window = self.tokens[index : index + self.width + 1]
        return window[:-1], window[1:], index


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(9, 8), nn.LayerNorm(8), nn.Linear(8, 9, bias=False)

    def forward(self, tokens, targets):
        logits = self.head(self.norm(self.embed(tokens)))
        return logits, nn.functional.cross_entropy(logits.view(-1, 9), targets.reshape(-1))


class Trainer:
    def __init__(self, model, optimizer, parts, out):
        self.rank, self.out = int(os.environ["LOCAL_RANK"]), out
        self.train_loader, self.test_loader = (self.prepare(part) for part in parts)
        self.optimizer, self.scaler = optimizer, torch.amp.GradScaler("cuda", init_scale=256.0)
        self.model = DDP(model.to(self.rank), device_ids=[self.rank])

    def prepare(self, part):
        return DataLoader(part, 8, pin_memory=True, shuffle=False, num_workers=1, sampler=DistributedSampler(part))

    def run_batch(self, source, targets, train):
        with torch.set_grad_enabled(train), torch.amp.autocast("cuda", torch.float16):
            _, loss = self.model(source, targets)
        if train:
            self.optimizer.zero_grad(set_to_none=True)
            self.scaler.scale(loss).backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss.item()

    def run_epoch(self, epoch, loader, train=True):
        loader.sampler.set_epoch(epoch)
        for source, targets, index in loader:
            if train:
                print(*index.tolist(), file=self.out, end=" ")
            loss = self.run_batch(source.to(self.rank), targets.to(self.rank), train)
        if train:
            print(file=self.out)
        print(f"{'train' if train else 'test'} {epoch} {loss:.6f}")

    def train(self, epochs):
        for epoch in range(1, epochs + 1):
            self.run_epoch(epoch, self.train_loader)
            if self.rank == 0:
                raw = self.model.module if hasattr(self.model, "module") else self.model
                torch.save({"model": raw.state_dict(), "optimizer": self.optimizer.state_dict()}, "snapshot.pt")
            self.run_epoch(epoch, self.test_loader, train=False)


def main(epochs):
    device = torch.device(f"{torch.accelerator.current_accelerator()}:{os.environ['LOCAL_RANK']}")
    init_process_group(get_default_backend_for_device(device))
    torch.accelerator.set_device_index(device.index)
    torch.manual_seed(3)
    data = Windows(120, 4)
    parts = random_split(data, [96, 24])
    model = Tagger()
    decayed = [model.head.weight]
    rest = [p for p in model.parameters() if p is not model.head.weight]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": rest, "weight_decay": 0.0}], lr=0.01)
    with open(f"seen.{os.environ['RANK']}", "w") as out:
        Trainer(model, optimizer, parts, out).train(epochs)
    destroy_process_group()


if __name__ == "__main__":
    if torch.accelerator.device_count() < 1:
        sys.exit("no accelerator")
    main(int(sys.argv[1]))
