"""Deep Q-learning: the network, its replay, and one update, for both presets.

Q(s, a) is the value of action a in state s, a network with two hidden layers of 64 and 32 and leaky rectifiers. With a
transition (s, a, R, s', g), where R is the (n-step, discounted) reward until s' and g the discount that s' is due,
zero at the end, one update makes

    (Q(s, a; theta) - y)^2     smaller, averaged over a mini-batch from the replay.

Preset `paper` is the RLP paper to the letter (section 3.3, algorithm 2, section 4): ``y = R + g max_b Q(s', b; theta)``
bootstraps from theta itself, actions are taken by theta*, which is copied from theta every 5 updates, and theta* is the
result. That is the reverse of DQN. Before it, Q is regressed on the undiscounted time left in episodes of BSP, ASP and
SSP. Preset `tuned` has what makes it work: double DQN, ``y = R + g Q(s', argmax_b Q(s', b; theta); theta*)``, no
discount but an end, returns of up to 16 steps of an action that is explored to the end, a large replay, Adam, a theta*
that is the running mean of theta, bounded features, macro actions (the view "phase"), and a margin by which an action
must beat the fallback's.

Where the paper leaves something open: numbers are counted in units (`polyrhythm.policies.rlp.views.UNITS`, times in
100 s) and the norm of a gradient is clipped at 10; raw, the iteration count alone makes the first updates infinite.
Pre-training sees its samples 20 times, and the best of the networks after each goes on, judged by validation jobs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from polyrhythm.policies.rlp.network import SLOPE, Layer, ValueNetwork
from polyrhythm.policies.rlp.views import VIEWS, Observation
from polyrhythm.rl.mlp import MLP, Array
from polyrhythm.training.flat import FlatLayout
from polyrhythm.training.optimizer import FlatOptimizer

HIDDEN = (64, 32)
"""Units of the hidden layers."""
CLIP = 10.0
"""Largest norm of a gradient."""


@dataclass(frozen=True, slots=True)
class Preset:
    """Everything that a learner can be set to.

    Args:
        name: key in `PRESETS`.
        view: what is seen and chosen from.
        families: of instances, taken in turn.
        gamma: discount of one choice.
        epsilon: probability of a random action at each choice, at the start of learning and, linearly, at its end;
            `tuned` keeps to such an action until the end of the episode.
        replay: transitions that are kept; batch: of one update; updates: per transition.
        copy_every: updates from one copy of theta to theta* to the next.
        copied: share of theta in what theta* becomes then; below 1 theta* is a running mean.
        rate: learning rate of SGD or, if `adam`, of Adam.
        double: double DQN; otherwise the paper's reversed roles.
        steps: of an n-step return.
        margin: share of the time left that an action must save to be taken in the fallback's place, once learned.
        keep: whether, once learned, the first choice is kept.
        pretraining: instances whose episodes under fixed policies or actions come first.
        episodes: after them.
        loss: what is seen of it; see `polyrhythm.policies.RLP`.
    """

    name: str
    view: str
    families: tuple[str, ...]
    gamma: float
    epsilon: tuple[float, float]
    replay: int
    batch: int
    updates: float
    copy_every: int
    copied: float
    rate: float
    adam: bool
    double: bool
    steps: int
    margin: float
    keep: bool
    pretraining: int
    episodes: int
    loss: str = "running"


PRESETS = {
    preset.name: preset
    for preset in (
        Preset(
            name="paper",
            view="paper",
            families=("paper",),
            gamma=0.8,
            epsilon=(0.1, 0.1),
            replay=50,
            batch=32,
            updates=1.0,
            copy_every=5,
            copied=1.0,
            rate=0.01,
            adam=False,
            double=False,
            steps=1,
            margin=0.0,
            keep=False,
            pretraining=100,
            episodes=1000,
        ),
        Preset(
            name="tuned",
            view="phase",
            families=(
                "staleness",
                "paper",
                "workers-other",
                "hidden-0",
                "hidden-3",
                "hidden-4",
                "moderate",
                "hidden-2",
                "stragglers-other",
                "paper-other",
            ),
            gamma=1.0,
            epsilon=(0.3, 0.3),
            replay=50_000,
            batch=256,
            updates=0.5,
            copy_every=1,
            copied=0.005,
            rate=1e-3,
            adam=True,
            double=True,
            steps=16,
            margin=0.2,
            keep=True,
            pretraining=1000,
            episodes=384,
        ),
    )
}


class Transition(NamedTuple):
    state: Observation
    action: int
    reward: float
    following: Observation
    discount: float


def n_step(
    choices: Sequence[tuple[Observation, int]], rewards: Sequence[float], gamma: float, steps: int
) -> list[Transition]:
    """Transitions of an episode; beyond its end nothing is worth anything.

    >>> [t[2:] for t in n_step([((0.0,), 0), ((1.0,), 1)], [-1.0, -2.0], gamma=0.5, steps=2)]
    [(-2.0, (0.0,), 0.0), (-2.0, (1.0,), 0.0)]
    """
    made = []
    for at, (state, action) in enumerate(choices):
        reach = min(at + steps, len(choices))
        reward = sum(gamma ** (later - at) * rewards[later] for later in range(at, reach))
        ended = reach == len(choices)
        following, discount = (state, 0.0) if ended else (choices[reach][0], gamma ** (reach - at))
        made.append(Transition(state, action, reward, following, discount))
    return made


class Replay:
    def __init__(self, size: int, inputs: int) -> None:
        self.size, self.count = size, 0
        self.states, self.following = np.zeros((2, size, inputs), np.float32)
        self.actions = np.zeros(size, np.int64)
        self.rewards, self.discounts = np.zeros((2, size), np.float32)

    def __len__(self) -> int:
        return min(self.count, self.size)

    def add(self, transition: Transition) -> None:
        """In place of the oldest, once it is full."""
        at = self.count % self.size
        self.states[at], self.following[at] = transition.state, transition.following
        self.actions[at], self.rewards[at] = transition.action, transition.reward
        self.discounts[at] = transition.discount
        self.count += 1

    def state(self) -> dict[str, Any]:
        return {name: torch.from_numpy(kept) for name, kept in self._arrays()} | {"count": self.count}

    def load(self, state: dict[str, Any]) -> None:
        self.count = state["count"]
        for name, kept in self._arrays():
            kept[:] = state[name].numpy()

    def _arrays(self) -> list[tuple[str, NDArray[Any]]]:
        return [(name, kept) for name, kept in vars(self).items() if isinstance(kept, np.ndarray)]


class Learner:
    """Both networks, the replay and the optimizer.

    Example:
        >>> learner = Learner(PRESETS["tuned"], seed=0)
        >>> state = (0.1,) * 14
        >>> for _ in range(400):
        ...     learner.learn(Transition(state, 1, -1.0, state, 0.0))
        >>> round(learner.online(np.array(state, np.float32))[1].item())
        -1
    """

    def __init__(self, preset: Preset, seed: int) -> None:
        view = VIEWS[preset.view]
        self.preset, self.actions = preset, len(view.actions)
        self.generator = torch.Generator().manual_seed(seed)
        widths = (view.inputs, *HIDDEN, self.actions)
        self.online, self.target = (MLP(widths, self.generator) for _ in range(2))
        self._copy()
        kind = torch.optim.Adam if preset.adam else torch.optim.SGD
        flat = torch.from_numpy(self.online.parameters)
        self.optimizer = FlatOptimizer(kind, {"lr": preset.rate}, flat, FlatLayout.of({"parameters": flat}))
        self.replay = Replay(preset.replay, view.inputs)
        self.updates = 0
        self.owed = 0.0
        self.loss = math.nan

    def learn(self, *transitions: Transition) -> None:
        for transition in transitions:
            self.replay.add(transition)
        self.owed += self.preset.updates * len(transitions)
        while self.owed >= 1:
            self.owed -= 1
            self.update()

    def update(self) -> None:
        rows = torch.randint(len(self.replay), (self.preset.batch,), generator=self.generator).numpy()
        replay = self.replay
        goals, discounts = replay.rewards[rows], replay.discounts[rows]
        (going,) = discounts.nonzero()
        if len(going):
            goals[going] += discounts[going] * self._bootstrap(replay.following[rows[going]])
        self._descend(replay.states[rows], replay.actions[rows], goals)
        self.updates += 1
        if self.updates % self.preset.copy_every == 0:
            self._copy(self.preset.copied)

    def regress(self, states: Array, actions: NDArray[np.int64], goals: Array) -> None:
        """Pre-training: one pass over known values, in random mini-batches; both networks start from what it gives."""
        order = torch.randperm(len(states), generator=self.generator).numpy()
        for start in range(0, len(order), self.preset.batch):
            rows = order[start : start + self.preset.batch]
            self._descend(states[rows], actions[rows], goals[rows])
        self._copy()

    def start_from(self, parameters: Array) -> None:
        self.online.parameters[:] = parameters
        self._copy()

    def _copy(self, share: float = 1.0) -> None:
        target, online = self.target.parameters, self.online.parameters
        target[:] = online if share == 1 else target + np.float32(share) * (online - target)

    def _bootstrap(self, states: Array) -> Array:
        values = self.online(states)
        best = values.argmax(1)
        chosen: Array = (self.target(states) if self.preset.double else values)[np.arange(len(states)), best]
        return chosen

    def _descend(self, states: Array, actions: NDArray[np.int64], goals: Array) -> None:
        self.loss, gradient = self.online.gradient(states, actions, goals)
        norm = math.sqrt(gradient @ gradient)
        if norm > CLIP:
            gradient *= np.float32(CLIP / norm)
        self.optimizer.step(torch.from_numpy(gradient))

    def network(self) -> ValueNetwork:
        """Theta*, which acts, in plain Python."""
        return self.target.plain()

    def state(self) -> dict[str, Any]:
        return {
            "online": torch.from_numpy(self.online.parameters),
            "target": torch.from_numpy(self.target.parameters),
            "optimizer": self.optimizer.optimizer.state_dict(),
            "replay": self.replay.state(),
            "generator": self.generator.get_state(),
            "updates": self.updates,
            "owed": self.owed,
        }

    def load(self, state: dict[str, Any]) -> None:
        self.online.parameters[:] = state["online"].numpy()
        self.target.parameters[:] = state["target"].numpy()
        self.optimizer.optimizer.load_state_dict(state["optimizer"])
        self.replay.load(state["replay"])
        self.generator.set_state(state["generator"])
        self.updates, self.owed = state["updates"], state["owed"]


def favouring(network: ValueNetwork, action: int, margin: float) -> ValueNetwork:
    """The network with an action's value, minus the time that is left, smaller by the share `margin`.

    Of two actions with equal times the favoured one is then the best, and another only if it saves more than that.

    >>> favouring(ValueNetwork((Layer(((1.0,), (1.0,)), (0.0, 0.0)),)), 1, 0.25).values([-2.0])
    [-2.0, -1.5]
    """
    *first, last = network.layers
    shares = [1 - margin * (at == action) for at in range(len(last.bias))]
    weights = tuple(tuple(share * value for value in row) for share, row in zip(shares, last.weights, strict=True))
    bias = tuple(share * value for share, value in zip(shares, last.bias, strict=True))
    return ValueNetwork((*first, Layer(weights, bias)))


class GreedyAgent:
    """An agent that takes the best action of a network, until it explores.

    One choice of many hardly moves the end of a job, so what it explores is an action kept to the end: what follows is
    to be learned from, and the choices before are not.

    Args:
        network: values of the actions.
        epsilon: probability at each choice of turning to a random action, for the rest of the episode.
        rng: random numbers.
        keep: whether the first choice is kept, too.

    Attributes:
        before: choices until it turned.
    """

    def __init__(self, network: ValueNetwork, epsilon: float, rng: np.random.Generator, keep: bool = False) -> None:
        self.layers = [(np.array(layer.weights), np.array(layer.bias)) for layer in network.layers]
        self.epsilon, self.rng, self.keep = epsilon, rng, keep
        self.kept: int | None = None
        self.before = 0

    def choose(self, observation: Observation) -> int:
        if self.kept is None and self.rng.random() < self.epsilon:
            self.kept = int(self.rng.integers(len(self.layers[-1][1])))
        if self.kept is not None:
            return self.kept
        self.before += 1
        best = self._best(observation)
        self.kept = best if self.keep else None
        return best

    def _best(self, observation: Observation) -> int:
        """As `ValueNetwork.best`, several times faster."""
        (*hidden, (weights, bias)), values = self.layers, np.array(observation)
        for inner, offset in hidden:
            values = inner @ values + offset
            values = np.maximum(values, SLOPE * values)
        return int(np.argmax(weights @ values + bias))
