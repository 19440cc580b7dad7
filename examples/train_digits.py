"""Train a small network on scikit-learn's digits under any policy.

polyrhythm run --nproc-per-node 3 --policy ssp:3 examples/train_digits.py --epochs 5
torchrun --standalone --nproc-per-node 2 examples/train_digits.py
python examples/train_digits.py
"""

# mypy: allow-untyped-calls
import argparse
import os
import time

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import polyrhythm


def load() -> tuple[TensorDataset, TensorDataset]:
    """1,500 images to learn from and 297 to be judged by."""
    digits = load_digits()
    x, y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    return TensorDataset(x[:1500], y[:1500]), TensorDataset(x[1500:], y[1500:])


@torch.no_grad()
def accuracy(model: nn.Module, data: TensorDataset) -> float:
    """Share of right answers."""
    x, y = data.tensors
    right: Tensor = model(x).argmax(1) == y
    return right.float().mean().item()


def main() -> None:
    """Train, and print the accuracy after every epoch on the first rank."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--batch-size", type=int, default=20, help="samples of one step on one worker")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--uneven", type=float, default=0.0, metavar="MS", help="sleep so long in each step, and four times on the last"
    )
    options = parser.parse_args()

    torch.manual_seed(options.seed)
    train, test = load()
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr, momentum=0.9)

    with polyrhythm.session(model, optimizer, policy="bsp", epochs=options.epochs) as session:
        slow = session.rank == int(os.environ.get("WORLD_SIZE", "1")) - 1
        for epoch in range(options.epochs):
            for x, y in session.loader(train, batch_size=options.batch_size):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(model(x), y)
                time.sleep(options.uneven / 1000 * (4 if slow else 1))
                loss.backward()
                optimizer.step()
            if session.rank == 0:
                session.log(accuracy=(reached := accuracy(model, test)))
                print(f"epoch {epoch}: {session.policy}, accuracy {reached:.3f}", flush=True)


if __name__ == "__main__":
    main()
