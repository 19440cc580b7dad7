"""A worker whose parameters say which samples were made: ``_attempts_worker.py EPOCHS SAMPLES SLOTS BATCH COMPUTE_S``.

Its parameters at the end go to the file ``RANK.pt`` of the folder OUT.
"""

import os
import sys
from pathlib import Path

import torch

import polyrhythm
from polyrhythm.testing.coordinates import SampleAttempts, train_attempts

epochs, samples, slots, batch = map(int, sys.argv[1:5])
model = SampleAttempts(epochs, samples, slots, batch)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
with polyrhythm.session(model, optimizer, epochs=epochs) as session:
    train_attempts(session, model, optimizer, batch, float(sys.argv[5]))
torch.save(model.weight.detach().clone(), Path(os.environ["OUT"]) / f"{os.environ['RANK']}.pt")
