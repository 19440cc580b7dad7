"""Accelerate's own loop under any policy: it takes care of precision and logging, the session of workers and data.

polyrhythm run --nproc-per-node 2 --policy ssp:3 examples/train_accelerate.py
"""

# mypy: ignore-errors
import os

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

import polyrhythm


def main() -> None:
    os.environ.pop("LOCAL_RANK", None)  # to Accelerate every worker is a process on its own
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    accelerator = Accelerator(mixed_precision="no", cpu=True)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(accelerator.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    with polyrhythm.session(model, optimizer) as session:
        seen = 0
        for _ in range(2):
            for x, y in session.loader(data, batch_size=25):
                optimizer.zero_grad()
                with accelerator.autocast():
                    loss = nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                seen += len(x)
        print(f"rank {session.rank}: {seen} samples, loss {loss.item():.3f}", flush=True)


if __name__ == "__main__":
    main()
