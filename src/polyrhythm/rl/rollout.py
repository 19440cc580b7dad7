"""Episodes played for learning and for comparison, on all cores."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import joblib
import numpy as np

from polyrhythm.policies import parse_policy
from polyrhythm.policies.rlp.network import ValueNetwork
from polyrhythm.policies.rlp.views import Observation
from polyrhythm.rl.acting import WINDOW, Acting, Agent, Watched, blank
from polyrhythm.rl.dqn import GreedyAgent
from polyrhythm.rl.episode import Episode
from polyrhythm.rl.instances import Instance
from polyrhythm.sim.tied import delayed
from polyrhythm.training.gradient import one_thread


@dataclass(frozen=True, slots=True)
class Constant:
    action: int

    def choose(self, observation: Observation) -> int:
        return self.action


@dataclass(slots=True)
class Played:
    """One episode: choices, when they were made, and when it ended; of the first `before` nothing is to be learned."""

    choices: list[tuple[Observation, int]] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    end_s: float = 0.0
    reached: bool = False
    before: int = 0

    def rewards(self, unit_s: float) -> list[float]:
        """Minus the time from each choice to the next, in a unit."""
        return [
            (start - stop) / unit_s for start, stop in zip(self.times_s, [*self.times_s[1:], self.end_s], strict=True)
        ]

    def left(self, unit_s: float) -> list[float]:
        """Minus the time from each choice to the end, in a unit."""
        return [(time_s - self.end_s) / unit_s for time_s in self.times_s]


@dataclass(frozen=True, slots=True)
class Rollout:
    """What is to be played, on any core.

    Args:
        instance: the job.
        view: what is seen.
        policy: a spec whose doings are recorded as actions of the paper's view; empty: an agent chooses.
        action: what it always chooses; None: what `network` says, until it explores (see `GreedyAgent`).
        keep: whether the network chooses only once.
        seed: of the agent.
        folder: of the data.
        loss: what is seen of it; see `RLP`.
    """

    instance: Instance
    view: str
    policy: str = ""
    action: int | None = None
    network: ValueNetwork | None = None
    epsilon: float = 0.0
    keep: bool = False
    seed: int = 0
    folder: str | None = None
    window: int = WINDOW
    loss: str = "running"

    def agent(self) -> Agent:
        if self.action is not None:
            return Constant(self.action)
        assert self.network is not None
        return GreedyAgent(
            self.network, self.epsilon, np.random.default_rng((self.seed, self.instance.seed)), self.keep
        )


class RolloutRecorder:
    def __init__(self, agent: Agent | None) -> None:
        self.agent, self.played = agent, Played()
        self.episode: Episode | None = None

    def choose(self, observation: Observation) -> int:
        assert self.agent is not None
        action = self.agent.choose(observation)
        self.note(observation, action)
        return action

    def note(self, observation: Observation, action: int) -> None:
        assert self.episode is not None
        self.played.choices.append((observation, action))
        self.played.times_s.append(self.episode.engine.calendar.now_s)


def play(rollout: Rollout) -> Played:
    """Play one episode.

    >>> from polyrhythm.rl.instances import FAMILIES, draw
    >>> played = play(Rollout(draw(FAMILIES["hidden-0"], 1), "phase", action=0))
    >>> played.reached, {action for _, action in played.choices}
    (True, {0})
    """
    agent = None if rollout.policy else rollout.agent()
    recorder = RolloutRecorder(agent)
    if rollout.policy:
        policy: Acting | Watched = Watched(watched=parse_policy(rollout.policy), seen=recorder.note, loss=rollout.loss)
    else:
        policy = Acting(given=blank(rollout.view, rollout.window, rollout.loss), agent=recorder)
    played = run_recorded(recorder, Episode(rollout.instance, policy, rollout.folder))
    played.before = agent.before if isinstance(agent, GreedyAgent) else 0
    return played


def run_recorded(recorder: RolloutRecorder, episode: Episode) -> Played:
    recorder.episode = episode
    with one_thread():
        episode.run()
    recorder.played.end_s, recorder.played.reached = episode.time_s, episode.reached
    return recorder.played


def play_all(rollouts: Sequence[Rollout], jobs: int) -> list[Played]:
    """Play many, on so many cores (-1 is all), in their order."""
    return list(play_ahead(rollouts, jobs))


def play_ahead(rollouts: Sequence[Rollout], jobs: int) -> Iterator[Played]:
    """As `play_all`, but other cores begin at once, whenever the results are asked for; one core plays when asked."""
    jobs = min(jobs, max(1, len(rollouts)))
    if jobs == 1:
        return map(play, rollouts)
    calls = (delayed(play)(rollout) for rollout in rollouts)
    played: Iterator[Played] = joblib.Parallel(jobs, return_as="generator", pre_dispatch="all", batch_size=1)(calls)
    return played
