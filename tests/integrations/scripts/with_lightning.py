# mypy: ignore-errors
"""Lightning's Trainer as it is, with its own DistributedDataParallel; the argument is what there is besides."""

import sys

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WHAT = sys.argv[1]
X = torch.randn(256, 8, generator=torch.Generator().manual_seed(3))
DATA = TensorDataset(X, X.sum(1, keepdim=True))


class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))

    def training_step(self, batch, _):
        loss = self.loss_of(batch)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch, _):
        self.log("val_loss", self.loss_of(batch), sync_dist=True)

    def loss_of(self, batch):
        x, y = batch
        return nn.functional.mse_loss(self.net(x), y)

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.02, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 2)}


lightning.seed_everything(1)
trainer = lightning.Trainer(
    accelerator="cpu",
    strategy="ddp",
    devices=2,
    max_epochs=4,
    accumulate_grad_batches=3 if WHAT == "accumulated" else 1,
    gradient_clip_val=1.0,
    default_root_dir="made",
    logger=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
model = Module()
trainer.fit(model, DataLoader(DATA, 8, shuffle=True), DataLoader(DATA, 32))
with open(f"weights.{trainer.global_rank}", "w") as out:
    print(*[x for p in model.parameters() for x in p.detach().flatten().tolist()], file=out)
    print(trainer.global_step, float(trainer.callback_metrics["val_loss"]), file=out)
