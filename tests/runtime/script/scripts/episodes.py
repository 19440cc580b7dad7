# mypy: ignore-errors
"""Reinforcement learning in small: many forward passes a step, no loader, and an end that each process finds itself."""

import os
import sys
from itertools import count

import torch
from torch import nn
from torch.distributions import Categorical

torch.manual_seed(0)
policy = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.1), nn.ReLU(), nn.Linear(8, 2), nn.Softmax(dim=-1))
optimizer = torch.optim.Adam(policy.parameters(), lr=0.05)
mean = 0.5
for episode in count(1):
    logs, rewards = [], []
    for _ in range(10):
        state = torch.rand(1, 2)
        choice = Categorical(policy(state))
        action = choice.sample()
        logs.append(choice.log_prob(action))
        rewards.append(float(action.item() == (state[0, 0] > state[0, 1])))
    mean = 0.9 * mean + 0.1 * sum(rewards) / 10
    optimizer.zero_grad()
    torch.cat([-log * (reward - 0.5) for log, reward in zip(logs, rewards, strict=True)]).sum().backward()
    optimizer.step()
    if mean > 0.8 or episode == int(sys.argv[1]):
        break
with open(f"weights.{os.environ.get('RANK', 0)}", "w", opener=os.open) as out:
    print(episode, mean > 0.8, file=out)
