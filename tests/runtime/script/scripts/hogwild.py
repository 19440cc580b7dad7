# mypy: ignore-errors
"""A script that trains in processes of its own, or in none: its arguments say how they start, and what they do."""

import sys
import time
from pathlib import Path

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(model, name):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for (x,) in DataLoader(TensorDataset(torch.ones(8, 3)), 4):
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
    Path(f"trained.{name}").touch()


def idle(model, name):
    time.sleep(0)


def main(method, work):
    context, model = mp.get_context(method), nn.Linear(3, 1).share_memory()
    children = []
    for number in range(1 if method == "spawn" else 2):  # a new interpreter takes its time
        child = context.Process(target={"train": train, "idle": idle}[work.split("+")[0]], args=(model, number))
        child.start()
        children.append(child)
    if work == "idle+train":
        train(model, "parent")
    for child in children:
        child.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
