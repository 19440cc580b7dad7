"""A Gymnasium environment over the simulator: one episode is one training job of a random instance.

`polyrhythm.policies.RLP` asks for an action deep inside a decision, while Gymnasium wants to be called between two of
them. Because decisions are pure, each report is tried first: if a choice is due, the engine stops there with nothing
done, and the same decision is taken again once the action is known.
"""

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from polyrhythm.core import Event, LossMeasured, Report, TraceWriter
from polyrhythm.errors import DivergedError
from polyrhythm.policies.rlp.views import VIEWS, Observation
from polyrhythm.rl.acting import WINDOW, Acting, blank
from polyrhythm.rl.episode import Episode
from polyrhythm.rl.instances import Family, Instance, draw, family_named
from polyrhythm.sim.engine import Engine
from polyrhythm.sim.job import SimJob
from polyrhythm.telemetry import Meter

REWARD_S = 100.0
"""Seconds that cost a reward of 1."""


class Asking:
    def __init__(self) -> None:
        self.asked: Observation | None = None
        self.action = 0

    def choose(self, observation: Observation) -> int:
        self.asked = observation
        return self.action


class PausingEngine(Engine):
    """An engine that stops before every decision that needs a choice; `pending` is the event that it is about."""

    pending: Event | None = None

    def __init__(self, job: SimJob, meter: Meter, writer: TraceWriter | None = None) -> None:
        super().__init__(job, meter, writer)
        self.tell = self._pause_or_tell

    def act(self) -> None:
        assert self.pending is not None
        event, self.pending, self.stopped = self.pending, None, False
        self.driver.tell(event)
        self.end_epoch_if_over()
        if self.meter.samples >= self.mark:
            self.mark = self.at_mark()
        self.go_on()

    def _pause_or_tell(self, event: Event) -> None:
        agent = self.policy.agent  # type: ignore[attr-defined]
        agent.asked = None
        if isinstance(event, Report | LossMeasured):
            self.policy.decide(self.driver.state, event)
        if agent.asked is None:
            self.driver.tell(event)
        else:
            self.pending, self.stopped = event, True


class SynchronizationEnv(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Choose who goes on, to bring a training job to its target soon.

    Observation and action are those of a view of `polyrhythm.policies.rlp.views`. The reward is minus the virtual time
    since the last choice, in units of `REWARD_S`; an episode terminates at the target accuracy, and is truncated when
    the job diverges or reaches its limit of mini-batches.

    Args:
        family: name of a family of instances, or a family.
        view: "phase" (14 inputs, 4 actions) or "paper" (40 inputs, 3 actions).
        folder: of the data, for families on fashion-mnist.
        window: reports of each worker in a window.
        loss: "running", of the mini-batches, or "probe", on a probe batch after each update.

    Example:
        >>> env = SynchronizationEnv("staleness")
        >>> observation, info = env.reset(seed=1)
        >>> observation.shape, sorted(info)
        ((14,), ['instance', 'time_s'])
        >>> observation, reward, terminated, truncated, info = env.step(3)
        >>> reward < 0, terminated
        (True, False)
    """

    def __init__(
        self,
        family: str | Family = "staleness",
        view: str = "phase",
        folder: str | None = None,
        window: int = WINDOW,
        loss: str = "running",
    ) -> None:
        self.family = family if isinstance(family, Family) else family_named(family)
        self.view, self.folder, self.given = VIEWS[view], folder, blank(view, window, loss)
        self.observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (self.view.inputs,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(len(self.view.actions))
        self.asking = Asking()
        self.episode: Episode | None = None
        self.seen: Observation = (0.0,) * self.view.inputs

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        """A new job; `options` may name its "instance"."""
        super().reset(seed=seed)
        instance = (options or {}).get("instance") or draw(self.family, int(self.np_random.integers(2**31)))
        policy = Acting(given=self.given, agent=self.asking)
        self.episode = Episode(instance, policy, self.folder, PausingEngine)
        self._engine.begin()
        self._play(self._engine.go_on)
        return self._observed(), self._info()

    def step(self, action: Any) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        assert self.episode is not None, "call reset first"
        before_s = self._engine.calendar.now_s
        self.asking.action = int(action)
        self._play(self._engine.act)
        reward = (before_s - self._engine.calendar.now_s) / REWARD_S
        over = self._engine.pending is None
        reached = self.episode.reached
        return self._observed(), reward, reached, over and not reached, self._info()

    @property
    def _engine(self) -> PausingEngine:
        assert self.episode is not None
        assert isinstance(self.episode.engine, PausingEngine)
        return self.episode.engine

    def _play(self, part: Callable[[], None]) -> None:
        assert self.episode is not None
        try:
            part()
        except DivergedError:
            self.episode.diverged = True
            self._engine.pending = None
        if self._engine.pending is None:
            self._engine.close()
        if self.asking.asked is not None:
            self.seen = self.asking.asked

    def _observed(self) -> NDArray[np.float32]:
        return np.asarray(self.seen, np.float32)

    def _info(self) -> dict[str, Any]:
        assert self.episode is not None
        instance: Instance = self.episode.instance
        return {"time_s": self._engine.calendar.now_s, "instance": instance}


gymnasium.register("polyrhythm/Synchronization-v0", entry_point="polyrhythm.rl.env:SynchronizationEnv")
