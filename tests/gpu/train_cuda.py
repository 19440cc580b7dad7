"""A training script on CUDA tensors, for `test_session_gpu.py`: prints a line of JSON an epoch."""

import json
import sys

import torch
from torch import nn
from torch.utils.data import TensorDataset

import polyrhythm

policies = sys.argv[1].split(";")
device = torch.device("cuda", 0)
torch.manual_seed(0)
generator = torch.Generator().manual_seed(1)
x = torch.randn(512, 20, generator=generator)
y = (x @ torch.randn(20, 5, generator=generator)).argmax(1)
model = nn.Sequential(nn.Linear(20, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 5)).to(device)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

with polyrhythm.session(model, optimizer, policy=policies[0], epochs=len(policies)) as session:
    for generation, policy in enumerate(policies):
        if generation and session.rank == 0:
            session.switch(policy)
        seen = 0
        for inputs, labels in session.loader(TensorDataset(x, y), batch_size=32, pin_memory=True):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs.to(device)), labels.to(device))
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            seen += len(inputs)
        total = sum(p.double().sum().item() for p in model.parameters())
        accuracy = (model.eval()(x.to(device)).argmax(1).cpu() == y).float().mean().item()
        model.train()
        line = {"rank": session.rank, "epoch": generation, "policy": session.policy, "seen": seen, "total": total}
        print(json.dumps(line | {"accuracy": accuracy}), flush=True)
