# mypy: ignore-errors
"""Saves a snapshot after every epoch; rank 0 is killed in its second one, and the other waits for it in the third.

Every sample is a parameter, which has how often it was made. Arguments: what the loop calls the epoch, and what becomes
of the snapshot when the script begins: "load" it, "skip" it, or "lose" it if rank 0 was started again.
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader, TensorDataset

from polyrhythm.runtime.launch import control_client as steer

NAME, SNAPSHOT = sys.argv[1:3]
RANK, RESTARTS = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
SAMPLES, EPOCHS, BATCH = 64, 4, 4
FILE, KILLED, ENDED = Path("snapshot.pt"), Path("killed"), Path("ended")


def is_back():
    return ENDED.exists() or 0 in steer.status(steer.at(os.environ["TORCHELASTIC_RUN_ID"])).members


def wait_for(there):
    while not there():
        time.sleep(0.01)


def train(number):
    for batch, (x,) in enumerate(loader):
        if number == first + 1 and not RESTARTS:
            if RANK == 0:
                KILLED.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            wait_for(KILLED.exists)
        if number == first + 2 and batch == 1 and RANK == 1:
            wait_for(is_back)
        optimizer.zero_grad()
        (model(x).sum() / BATCH).backward()
        optimizer.step()
        time.sleep(0.02)
    made = -model.weight.detach()
    with open(f"epochs.{RANK}", "a", encoding="utf-8", opener=os.open) as file:
        file.write(f"{RESTARTS} {number} {made.min():g}\n")
    if RANK == 0:
        torch.save({"model": model.state_dict(), "epochs": number + 1}, FILE)


torch.manual_seed(0)
model = torch.nn.Linear(SAMPLES, 1, bias=False)
torch.nn.init.zeros_(model.weight)
first = 0
if FILE.exists() and (SNAPSHOT == "load" or (SNAPSHOT == "lose" and not RESTARTS)):
    snapshot = torch.load(FILE)
    model.load_state_dict(snapshot["model"])
    first = snapshot["epochs"]
optimizer = torch.optim.SGD(model.parameters(), lr=BATCH * int(os.environ["WORLD_SIZE"]))
loader = DataLoader(TensorDataset(torch.eye(SAMPLES)), BATCH, shuffle=True)
try:
    if NAME == "epoch":
        for epoch in range(first, EPOCHS):
            train(epoch)
    else:
        for e in range(first, EPOCHS):
            train(e)
finally:
    if RESTARTS:
        ENDED.touch()
