# mypy: ignore-errors
"""Accelerate's dispatcher: rank 0 reads the data of all; the argument says which, and what there is besides."""

import sys

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

WHAT = sys.argv[1]
EPOCHS = 4
X = torch.randn(250, 8, generator=torch.Generator().manual_seed(3))
DATA = TensorDataset(X, X.sum(1, keepdim=True))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(DATA)


torch.manual_seed(0)
accelerator = Accelerator(
    cpu=True,
    gradient_accumulation_steps=3 if WHAT == "accumulated" else 1,
    dataloader_config=DataLoaderConfiguration(dispatch_batches=True if WHAT == "map-style" else None),
)
model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=EPOCHS * 32 + 2)
data = DATA if WHAT == "map-style" else Stream()
loader, test = DataLoader(data, 8, shuffle=WHAT == "map-style"), DataLoader(data, 32)
model, optimizer, loader, test, scheduler = accelerator.prepare(model, optimizer, loader, test, scheduler)
for _ in range(EPOCHS):
    model.train()
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(nn.functional.mse_loss(model(x), y))
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
    model.eval()
    with torch.no_grad():
        errors = [accelerator.gather_for_metrics((model(x) - y).square().mean(1)) for x, y in test]
with open(f"weights.{accelerator.process_index}", "w") as out:
    print(*[x for p in model.parameters() for x in p.detach().flatten().tolist()], file=out)
    print(scheduler.get_last_lr(), torch.cat(errors).mean().item(), file=out)
accelerator.end_training()
