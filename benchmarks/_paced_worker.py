"""One worker of `esync_latency.py`: its computing is a sleep; the first rank prints seconds from the first step on."""

import json
import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import polyrhythm

BATCH = 4


def main(steps: int, step_s: float, slowdown: float) -> None:
    """Train one epoch of so many mini-batches."""
    torch.manual_seed(0)
    model = nn.Linear(8, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    is_slow = os.environ["RANK"] == "0"
    start = 0.0
    with polyrhythm.session(model, optimizer) as session:
        for (x,) in session.loader(TensorDataset(torch.randn(steps * BATCH, 8)), batch_size=BATCH):
            start = start or time.perf_counter()
            time.sleep(step_s * (slowdown if is_slow else 1.0))
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
        seconds = time.perf_counter() - start
    if is_slow:
        print(json.dumps(seconds), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]))
