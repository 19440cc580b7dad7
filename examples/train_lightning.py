"""Lightning's loop under any policy: a callback opens the session, and the module's optimizer step is a plain one.

polyrhythm run --nproc-per-node 2 --policy ssp:3 examples/train_lightning.py
"""

# mypy: ignore-errors
import os
from collections.abc import Iterator
from typing import Any

import lightning
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import polyrhythm


class Polyrhythm(lightning.Callback):
    """Opens a session for the fit, and deals out the training data.

    It has a length so that Lightning does not read ahead, and more than there can be, so that an epoch ends when the
    job's does.
    """

    def __init__(self, dataset: TensorDataset, batch_size: int) -> None:
        self._dataset, self._batch_size = dataset, batch_size
        self.session: Any = None

    def __len__(self) -> int:
        return -(-len(self._dataset) // self._batch_size) + 1

    def __iter__(self) -> Iterator[Any]:
        yield from self.session.loader(self._dataset, self._batch_size)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        self.session = polyrhythm.session(pl_module, trainer.optimizers[0]).__enter__()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self.session.__exit__(None, None, None)


class Digits(lightning.LightningModule):
    """Ten classes of 8 x 8 images."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.seen = 0

    def forward(self, x: Tensor) -> Any:
        return self.net(x)

    def training_step(self, batch: Any, number: int) -> Tensor:
        x, y = batch
        self.seen += len(x)
        return nn.functional.cross_entropy(self(x), y)

    def optimizer_step(self, epoch: int, number: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        optimizer_closure()  # forward and backward come before the step, where the session looks for gradients
        optimizer.optimizer.step()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    for name in ("LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK"):  # to Lightning every worker is a process on its own
        os.environ.pop(name, None)
    digits = load_digits()
    data = TensorDataset(torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target))
    torch.manual_seed(1)
    module, training = Digits(), Polyrhythm(data, 25)
    options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "barebones": False}
    trainer = lightning.Trainer(max_epochs=2, accelerator="cpu", devices=1, callbacks=[training], **options)
    trainer.fit(module, training)
    print(f"rank {training.session.rank}: {module.seen} samples", flush=True)


if __name__ == "__main__":
    main()
