# mypy: ignore-errors
"""Several optimizers and no loader: GANs, and an actor and its critic with a temperature that is no module's."""

import os
import sys

import torch
from torch import nn

WHAT, STEPS = sys.argv[1], int(sys.argv[2])
torch.manual_seed(0)
own = torch.Generator().manual_seed(int(os.environ.get("RANK", 0)) if "apart" in sys.argv else 0)


def draw():
    return torch.randn(8, 4, generator=own)


def maker_and_critic():
    models = [nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, width)) for width in (4, 1)]
    return *models, *(torch.optim.Adam(each.parameters(), lr=0.01) for each in models)


def judge(critic, of_critic, made):
    of_critic.zero_grad()
    (critic(draw() + 1) - critic(made.detach())).sigmoid().mean().backward()
    of_critic.step()


def gan():
    maker, critic, of_maker, of_critic = maker_and_critic()
    for _ in range(STEPS):
        made = maker(draw())
        of_maker.zero_grad()
        critic(made).square().mean().backward()
        of_maker.step()
        judge(critic, of_critic, made)
    return [maker, critic], []


def between():
    """The critic steps three times between the forward and the backward pass of what it judges."""
    maker, critic, of_maker, of_critic = maker_and_critic()
    for _ in range(STEPS):
        made = maker(draw())
        for _ in range(3):
            judge(critic, of_critic, made)
        of_maker.zero_grad()
        critic(made).square().mean().backward()
        of_maker.step()
    return [maker, critic], []


def idle():
    """One optimizer never steps, and the module that is called first is another one each time."""
    first, second = nn.Linear(4, 4), nn.Linear(4, 1)
    of_first, of_second = (torch.optim.Adam(each.parameters(), lr=0.01) for each in (first, second))
    for _ in range(STEPS):
        of_first.zero_grad()
        nn.Sequential(first, second)(draw()).square().mean().backward()
        of_first.step()
        of_second.zero_grad()
    return [first, second], []


def actor_and_critic():
    """The critic steps each time, the others every second time; the critic of the target follows slowly."""
    actor, critic, target = nn.Linear(4, 2), nn.Linear(6, 1), nn.Linear(6, 1)
    target.load_state_dict(critic.state_dict())
    temperature = torch.zeros(1, requires_grad=True)
    of_critic = torch.optim.Adam(critic.parameters(), lr=0.02)
    of_actor = torch.optim.Adam(actor.parameters(), lr=0.01)
    of_temperature = torch.optim.Adam([temperature], lr=0.01)
    for step in range(STEPS):
        state = draw()
        with torch.no_grad():
            wanted = state.sum(1, keepdim=True) + 0.9 * target(torch.cat([state, actor(state).tanh()], 1))
        of_critic.zero_grad()
        (critic(torch.cat([state, actor(state).detach()], 1)) - wanted).square().mean().backward()
        of_critic.step()
        if step % 2:
            action = actor(state).tanh()
            of_actor.zero_grad()
            (action.square() * temperature.exp().detach() - critic(torch.cat([state, action], 1))).mean().backward()
            of_actor.step()
            of_temperature.zero_grad()
            (temperature.exp() * (action.detach().square().mean() - 0.5)).backward()
            of_temperature.step()
        with torch.no_grad():
            for mine, slow in zip(critic.parameters(), target.parameters(), strict=True):
                slow.mul_(0.9).add_(mine, alpha=0.1)
    return [actor, critic], [temperature]


modules, loose = {"gan": gan, "between": between, "idle": idle, "critic": actor_and_critic}[WHAT]()
weights = [p for module in modules for p in module.parameters()] + loose
with open(f"weights.{os.environ.get('RANK', 0)}", "w", opener=os.open) as out:
    print(*[f"{x:.9g}" for p in weights for x in p.detach().flatten().tolist()], file=out)
