"""Hugging Face's Trainer under any policy: two methods are overridden, the rest of the Trainer stays as it is.

polyrhythm run --nproc-per-node 2 --policy ssp:3 examples/train_transformers.py
"""

# mypy: ignore-errors
import os
import tempfile
from collections.abc import Iterator
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments, default_data_collator

import polyrhythm


class PolyrhythmTrainer(Trainer):
    """Trains in a session; the data are dealt out by the job."""

    session: Any = None

    def get_train_dataloader(self) -> Any:
        return self

    def __len__(self) -> int:
        """More than there can be, so that an epoch ends when the job's does."""
        return -(-len(self.train_dataset) // self.args.per_device_train_batch_size) + 1

    def __iter__(self) -> Iterator[Any]:
        """One epoch; the first opens the session, when model and optimizer are made."""
        if self.session is None:
            self.session = polyrhythm.session(self.model, self.optimizer.optimizer).__enter__()
        size, accumulate = self.args.per_device_train_batch_size, self.args.gradient_accumulation_steps
        return iter(
            self.session.loader(
                self.train_dataset, size * accumulate, accumulate=accumulate, collate_fn=self.data_collator
            )
        )


class Digits(Dataset[dict[str, Tensor]]):
    """Ten classes of 8 x 8 images."""

    def __init__(self) -> None:
        digits = load_digits()
        self.x, self.y = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"x": self.x[index], "labels": self.y[index]}


class Net(nn.Module):
    """Gives its loss, as models of the Trainer do."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
        self.seen = 0

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        self.seen += len(x)
        logits = self.net(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    for name in ("LOCAL_RANK", "WORLD_SIZE"):  # to the Trainer every worker is a process on its own
        os.environ.pop(name, None)
    torch.manual_seed(1)
    model = Net()
    with tempfile.TemporaryDirectory() as folder:
        options = {"use_cpu": True, "save_strategy": "no", "report_to": "none", "disable_tqdm": True}
        arguments = TrainingArguments(folder, num_train_epochs=2, per_device_train_batch_size=25, **options)
        trainer = PolyrhythmTrainer(model, arguments, train_dataset=Digits(), data_collator=default_data_collator)
        trainer.train()
        trainer.session.__exit__(None, None, None)
    print(f"rank {trainer.session.rank}: {model.seen} samples", flush=True)


if __name__ == "__main__":
    main()
