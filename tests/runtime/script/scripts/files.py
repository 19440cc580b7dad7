# mypy: ignore-errors
"""A script for one process that writes files as it trains; its argument says how."""
# ruff: noqa: PTH104, PTH105, PTH108, PTH103, PTH110, PTH113, PTH202, SIM115

import csv
import json
import logging
import os
import pickle
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def move(epoch, state):
    torch.save(state, "tmp.pt")
    assert os.path.isfile("tmp.pt")
    assert os.path.getsize("tmp.pt") == Path("tmp.pt").stat().st_size > 100
    os.replace("tmp.pt", "final.pt")
    assert not os.path.exists("tmp.pt")
    assert torch.load("final.pt").keys() == state.keys()
    for number, go in enumerate((os.rename, Path.rename, Path.replace, shutil.move)):
        torch.save(state, "tmp.pt")
        go(Path("tmp.pt"), f"moved.{number}")
        assert not Path("tmp.pt").exists()
        assert Path(f"moved.{number}").exists()
    os.makedirs("kept", exist_ok=True)
    shutil.copy2("final.pt", f"kept/copy.{epoch}")
    torch.save(state, "moved.pt")
    shutil.move("moved.pt", "kept")
    torch.load("kept/moved.pt")
    os.unlink("kept/moved.pt")
    if epoch:
        Path(f"kept/copy.{epoch - 1}").unlink()
        assert not os.path.exists(f"kept/copy.{epoch - 1}")
    with tempfile.NamedTemporaryFile(dir=".", delete=False) as out:
        torch.save(state, out)
    os.replace(out.name, "whole.pt")
    torch.load("whole.pt")
    move_folder(epoch, state)


def move_folder(epoch, state):
    os.makedirs("half")
    torch.save(state, "half/model.pt")
    os.rename("half", f"epoch.{epoch}")
    torch.load(f"epoch.{epoch}/model.pt")


def write(epoch, state):
    is_new = epoch == 0
    with open("log.csv", "a") as out:
        out.write("epoch\n" * is_new + f"{epoch}\n")
    assert Path("log.csv").read_text().endswith(f"{epoch}\n")
    numbers = list(range(2000 * (3 - epoch)))  # a shorter file each time
    Path("now.json").write_text(json.dumps(numbers))
    assert json.loads(Path("now.json").read_text()) == numbers
    np.save("all.npy", np.array(numbers))
    np.savez("all.npz", numbers=np.array(numbers))
    np.savetxt("all.txt", np.array(numbers))
    assert len(np.load("all.npy")) == len(np.load("all.npz")["numbers"]) == len(np.loadtxt("all.txt")) == len(numbers)
    with open("all.pickle", "wb") as out:
        pickle.dump(numbers, out)
    with open("now.json", "r+") as out:
        out.write("[7,")
    assert json.loads(Path("now.json").read_text())[:2] == [7, 1]


class Log:
    """What is opened before the first step."""

    def __init__(self):
        self.texts = [open(f"log.{mode}", mode, newline="") for mode in "wa"]
        self.writers = [csv.writer(text) for text in self.texts]
        for writer in self.writers:
            writer.writerow(["epoch"])
        self.binary = open("log.bin", "wb", buffering=0)
        logging.basicConfig(filename="log.txt", level=logging.INFO, format="%(message)s", force=True)

    def add(self, epoch, _):
        for text, writer in zip(self.texts, self.writers, strict=True):
            writer.writerow([epoch])
            text.flush()
        self.binary.write(b"%d" % epoch)
        logging.info("epoch %d", epoch)


torch.manual_seed(0)
data = TensorDataset(torch.randn(24, 4) + 1)
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
after = {"move": move, "write": write}.get(sys.argv[1]) or Log().add
for epoch in range(3):
    for (x,) in DataLoader(data, 4, shuffle=True):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    after(epoch, model.state_dict())
