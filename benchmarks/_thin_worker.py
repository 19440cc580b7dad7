"""One worker of `replicas_between_hosts.py`: an MLP of 11 M parameters; prints when each step was over."""

import json
import os
import sys
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

import polyrhythm

WIDTH, FEATURES, CLASSES, BATCH, WORKERS = 3280, 64, 10, 16, 4


def main(steps: int, pause_s: float) -> None:
    """Train one epoch of so many steps in synchronous mode; the first rank prints seconds and seconds waited by step.

    With a pause most of a step's computing is that of an accelerator, which leaves the processor free: it is waited
    for, and the gradient is that of a single sample.
    """
    batch = 1 if pause_s else BATCH
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(steps * batch * WORKERS, FEATURES, generator=generator)
    y = (x @ torch.randn(FEATURES, CLASSES, generator=generator)).argmax(1)
    torch.manual_seed(0)
    layers = nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, CLASSES)
    model = nn.Sequential(*layers)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    marks: list[tuple[float, float]] = []
    with polyrhythm.session(model, optimizer) as session:
        for inputs, labels in session.loader(TensorDataset(x, y), batch_size=batch):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
            time.sleep(pause_s)
            optimizer.step()
            marks.append((time.perf_counter(), session.metrics["waited_s"]))
    if os.environ["RANK"] == "0":
        print(json.dumps(marks), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
