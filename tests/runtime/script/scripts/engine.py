# mypy: ignore-errors
"""A script for a single process that trains in an engine of ignite, and evaluates its training data in another.

Argument: the length of an epoch, 0 for the loader's, or "resumed" for that and a run that goes on from the first epoch.
"""

import json
import os
import sys

import torch
from ignite.engine import Engine, Events
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

EPOCHS, RESUMED = 5, sys.argv[1] == "resumed"
LENGTH = None if RESUMED else int(sys.argv[1]) or None
data = TensorDataset(torch.randn(96, 4, generator=torch.Generator().manual_seed(2)), torch.arange(96))
loader = DataLoader(data, 4, shuffle=True)
torch.manual_seed(0)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
seen, lengths, looked = [[]], [], []


def train(engine, batch):
    model.train()
    optimizer.zero_grad()
    model(batch[0]).square().mean().backward()
    optimizer.step()
    seen[-1].extend(batch[1].tolist())


def evaluate(engine, batch):
    model.eval()
    with torch.no_grad():
        model(batch[0])
    looked.extend(batch[1].tolist())


trainer, evaluator = Engine(train), Engine(evaluate)


@trainer.on(Events.EPOCH_COMPLETED)
def completed(engine):
    lengths.append(engine.state.epoch_length)
    seen.append([])
    evaluator.run(loader)


if RESUMED:
    trainer.run(loader, max_epochs=1)
trainer.run(loader, max_epochs=EPOCHS, epoch_length=LENGTH)
with open(f"told.{os.environ.get('RANK', '0')}", "w", opener=os.open) as file:
    json.dump({"seen": seen, "epochs": trainer.state.epoch, "lengths": lengths, "looked": len(looked)}, file)
