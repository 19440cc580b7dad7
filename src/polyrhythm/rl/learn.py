"""Learning a policy: pre-training, episodes, validation, checkpoints, and the file at the end."""

import json
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from polyrhythm.policies.rlp.network import Conditions, Learned, ValueNetwork, dump
from polyrhythm.policies.rlp.views import VIEWS, Observation
from polyrhythm.rl.acting import WINDOW, Acting, blank
from polyrhythm.rl.checkpoint import DAMAGED, WRONG, cannot_resume, check_same, data_flag, read_checkpoint
from polyrhythm.rl.dqn import Learner, Preset, Transition, favouring, n_step
from polyrhythm.rl.episode import Episode
from polyrhythm.rl.instances import Instance, draw, family_named
from polyrhythm.rl.mlp import Array
from polyrhythm.rl.rollout import Played, Rollout, RolloutRecorder, play_ahead, play_all, run_recorded
from polyrhythm.telemetry.files import put_whole, write_whole

TEACHERS = ("bsp", "asp", "ssp:1", "ssp:4", "ssp:7")
"""BSP, ASP and SSP with the paper's s = 2, 5, 8, which blocks one step earlier than ours."""
PAPER_UNIT_S = 100.0
"""Unit of time in the paper's rewards and regression."""
PASSES = 20
"""Times that the paper's pre-training sees its samples; the paper does not say, and one is too few. What it has come to
after each of them differs widely, so that the best on validation jobs goes on."""
BATCH = 16
"""Episodes that are played with one network before it learns from them (preset tuned)."""
AHEAD = 2
"""Batches under way: a batch is played with the network that has learned from all but so many less one."""
CHECK = 192
"""Episodes from one validation to the next."""
KEPT_S = 5.0
"""Seconds of the pre-training from one checkpoint to the next, at least."""
VALIDATION = 6
"""Instances of each family that validate."""
LEAST = 18
"""Instances that validate, however few the families are."""
VALIDATION_SEED = 500_000
"""Seeds from here on validate; benchmarks and reproductions take theirs from 1,000,000 on."""


STAND = ("done", "ready", "pretrained", "units", "curve", "score", "baseline")
"""Attributes of a study that say where it stands."""


class FigureLog(Protocol):
    """Where figures go; a TensorBoard writer is one."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> Any: ...


@dataclass
class Ranges:
    """What has been seen: the range of each input, and the numbers of workers."""

    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)

    def see(self, instance: Instance, played: Played) -> None:
        self.workers = [min([*self.workers[:1], instance.workers]), max([*self.workers[1:], instance.workers])]
        for observation, _ in played.choices:
            self.low = list(map(min, self.low or observation, observation))
            self.high = list(map(max, self.high or observation, observation))

    @property
    def conditions(self) -> Conditions:
        return Conditions((self.workers[0], self.workers[1]), tuple(self.low), tuple(self.high))


def nobody(done: int, planned: int) -> None:
    del done, planned


@dataclass
class Study:
    """One run of the learner, which can be stopped and resumed.

    Args:
        preset: how to learn.
        out: the file at the end; its checkpoint stands beside it.
        seed: of everything random.
        folder: of data that are not embedded.
        jobs: cores; -1 is all.
        log: where figures go.
        tell: called with (done, planned) instances of the pre-training, then episodes.
        command: how to do it again, for the file.
    """

    preset: Preset
    out: Path
    seed: int = 0
    folder: str | None = None
    jobs: int = -1
    log: FigureLog | None = None
    tell: Callable[[int, int], None] = nobody
    command: str = ""

    def __post_init__(self) -> None:
        self.learner = Learner(self.preset, self.seed)
        self.ranges = Ranges()
        self.done = 0
        self.ready = 0
        self.pretrained = False
        self.samples: list[tuple[Array, NDArray[np.int64], Array]] = []
        self.units: list[float] = []
        self.curve: list[list[float]] = []
        self.best: Array | None = None
        self.score = -math.inf
        self.saved_s = -math.inf
        self.baseline: list[float] = []
        self.data = data_flag(self.folder) if self.folder else {}

    @property
    def paper(self) -> bool:
        return not self.preset.double

    @property
    def checkpoint(self) -> Path:
        return self.out.with_name(self.out.name + ".checkpoint")

    def run(self) -> Learned:
        if not self.pretrained:
            self._pretrain()
            self._validate()
            self.save()
        while self.done < self.preset.episodes:
            until = min(self.done - self.done % CHECK + CHECK, self.preset.episodes)
            self._one_by_one(until) if self.paper else self._explore(until)
            self._validate()
            self.save()
        learned = self.learned()
        write_whole(self.out, dump(learned).encode())
        return learned

    # Pre-training.

    def _instance(self, index: int) -> Instance:
        families = self.preset.families
        return draw(family_named(families[index % len(families)]), 10_000 * self.seed + index)

    def _pretrain(self) -> None:
        """Episodes of fixed policies or actions on every instance that has had none, and what they teach."""
        pool = [self._instance(index) for index in range(self.ready, self.preset.pretraining)]
        groups = [self._fixed(instance) for instance in pool]
        every = play_ahead([rollout for group in groups for rollout in group], self.jobs)
        for instance, group in zip(pool, groups, strict=True):
            played = [next(every) for _ in group]
            self._note_teachers(instance, played) if self.paper else self._learn_constants(instance, played)
            self.ready += 1
            if time.monotonic() - self.saved_s >= KEPT_S:
                self.save()
            self.tell(self.ready, self.preset.pretraining)
        if self.samples:
            self._imitate()
        self.pretrained = True

    def _fixed(self, instance: Instance) -> list[Rollout]:
        if self.paper:
            return [self._rollout(instance, policy=teacher) for teacher in TEACHERS]
        return [self._rollout(instance, action=action) for action in range(self.learner.actions)]

    def _note_teachers(self, instance: Instance, group: list[Played]) -> None:
        """Samples of the time left in episodes of the teachers."""
        states, actions, goals = [], [], []
        for played in group:
            self.ranges.see(instance, played)
            states += [state for state, _ in played.choices]
            actions += [action for _, action in played.choices]
            goals += played.left(PAPER_UNIT_S)
        if states:
            self.samples.append((np.array(states, np.float32), np.array(actions), np.array(goals, np.float32)))

    def _imitate(self) -> None:
        """Regress the time left; the best of the networks after each pass goes on."""
        states, actions, goals = map(np.concatenate, zip(*self.samples, strict=True))
        networks = []
        for _ in range(PASSES):
            self.learner.regress(states, actions, goals)
            networks.append((self._score(self.learner.network()), self.learner.target.parameters.copy()))
        self.learner.start_from(max(networks, key=itemgetter(0))[1])
        self.samples.clear()

    def _learn_constants(self, instance: Instance, group: list[Played]) -> None:
        """Every action for ever: the mean of these times is the instance's unit of time."""
        unit_s = fmean(played.end_s for played in group)
        self.units.append(unit_s)
        for played in group:
            self._learn_from(instance, played, unit_s)

    # Episodes.

    def _epsilon(self, number: int) -> float:
        first, last = self.preset.epsilon
        return first + (last - first) * min(1.0, number / max(1, self.preset.episodes))

    def _explore(self, until: int) -> None:
        """Episodes up to this number, on instances whose unit is known, in batches.

        While the networks learn from one batch the other cores play the next, whatever the number of cores is.
        """
        ahead: deque[tuple[list[Rollout], Iterator[Played]]] = deque()
        for start in range(self.done, until, BATCH):
            ahead.append(self._begun(range(start, min(start + BATCH, until))))
            if len(ahead) == AHEAD:
                self._learn_batch(*ahead.popleft())
        while ahead:
            self._learn_batch(*ahead.popleft())

    def _begun(self, numbers: range) -> tuple[list[Rollout], Iterator[Played]]:
        network, pool = self.learner.network(), self.preset.pretraining
        rollouts = [
            self._rollout(self._instance(number % pool), seed=number, network=network, epsilon=self._epsilon(number))
            for number in numbers
        ]
        return rollouts, play_ahead(rollouts, self.jobs)

    def _learn_batch(self, rollouts: list[Rollout], every: Iterator[Played]) -> None:
        ratios = []
        for rollout, played in zip(rollouts, every, strict=True):
            unit_s = self.units[rollout.seed % self.preset.pretraining]
            self._learn_from(rollout.instance, played, unit_s)
            ratios.append(played.end_s / unit_s)
        self.done += len(rollouts)
        self._note("train/time_per_unit", fmean(ratios))
        self._note("train/loss", self.learner.loss)
        self.tell(self.done, self.preset.episodes)

    def _learn_from(self, instance: Instance, played: Played, unit_s: float) -> None:
        self.ranges.see(instance, played)
        preset, choices, rewards = self.preset, played.choices[played.before :], played.rewards(unit_s)[played.before :]
        self.learner.learn(*n_step(choices, rewards, preset.gamma, preset.steps))

    def _one_by_one(self, until: int) -> None:
        """Episodes up to this number in which the networks learn at every iteration, as algorithm 2 has it."""
        while self.done < until:
            self._online()
            self.tell(self.done, self.preset.episodes)

    def _online(self) -> None:
        instance = self._instance(self.preset.pretraining + self.done)
        agent = Online(self.learner, self._epsilon(self.done), np.random.default_rng((self.seed, self.done)))
        recorder = RolloutRecorder(agent)
        agent.recorder = recorder
        policy = Acting(given=blank("paper", loss=self.preset.loss), agent=recorder)
        played = run_recorded(recorder, Episode(instance, policy, self.folder))
        agent.end(played.end_s)
        self.ranges.see(instance, played)
        self.done += 1
        self._note("train/time_s", played.end_s)
        self._note("train/loss", self.learner.loss)

    # Validation.

    def _validate(self) -> None:
        """The best network so far is kept."""
        score = self._score(self._favouring(self.learner.network()))
        self.curve.append([float(self.done), score])
        self._note("validation/asp_by_learned", score)
        # The paper returns the last network, whatever it has come to.
        if self.paper or score >= self.score:
            self.score = score
            self.best = self.learner.target.parameters.copy()

    def _score(self, network: ValueNetwork) -> float:
        """How many times faster than ASP, as the geometric mean over families."""
        names = tuple(dict.fromkeys(self.preset.families))
        count = max(VALIDATION, LEAST // len(names))
        pool = [draw(family_named(name), VALIDATION_SEED + index) for name in names for index in range(count)]
        if not self.baseline:
            self.baseline = self._times([self._rollout(each, action=self._asp) for each in pool], count)
        times = self._times([self._rollout(each, network=network, keep=self.preset.keep) for each in pool], count)
        return geometric_mean(theirs / ours for theirs, ours in zip(self.baseline, times, strict=True))

    @property
    def _asp(self) -> int:
        return VIEWS[self.preset.view].actions.index("self" if self.paper else "1")

    def _favouring(self, network: ValueNetwork) -> ValueNetwork:
        return favouring(network, self._asp, self.preset.margin)

    def _rollout(self, instance: Instance, **how: Any) -> Rollout:
        return Rollout(instance, self.preset.view, folder=self.folder, loss=self.preset.loss, **how)

    def _times(self, rollouts: list[Rollout], count: int) -> list[float]:
        ends = [played.end_s for played in play_all(rollouts, self.jobs)]
        return [fmean(ends[start : start + count]) for start in range(0, len(ends), count)]

    def _note(self, tag: str, value: float) -> None:
        if self.log is not None:
            self.log.add_scalar(tag, value, self.done)

    # Files.

    def learned(self) -> Learned:
        network = self._favouring(self.learner.target.plain(self.best))
        training = {
            "command": self.command,
            "preset": self.preset.name,
            "families": ", ".join(dict.fromkeys(self.preset.families)),
            "seed": str(self.seed),
            "episodes": str(self.done),
            "validation": f"{self.score:.4f}",
            "curve": " ".join(f"{int(done)}:{score:.4f}" for done, score in self.curve),
        }
        preset, facts, conditions = self.preset, tuple(training.items()), self.ranges.conditions
        return Learned(preset.view, WINDOW, "asp", conditions, network, facts, preset.keep, preset.loss)

    def keep_best(self) -> bool:
        """Write the best policy so far, if there is one that has been validated."""
        if self.best is None:
            return False
        write_whole(self.out, dump(self.learned()).encode())
        return True

    @property
    def kept(self) -> bool:
        """Whether the checkpoint is of this study: one of another, finished study may lie there."""
        return self.saved_s > -math.inf

    def save(self) -> None:
        """Write the checkpoint, all of it or nothing."""
        best = None if self.best is None else torch.from_numpy(self.best)
        samples = [tuple(map(torch.from_numpy, columns)) for columns in self.samples]
        tensors = {"learner": self.learner.state(), "best": best, "samples": samples}
        with put_whole(self.checkpoint) as aside:
            torch.save({**tensors, "study": json.dumps(self._facts())}, aside)
        self.saved_s = time.monotonic()

    def _facts(self) -> dict[str, Any]:
        facts = {name: getattr(self, name) for name in STAND}
        return {**facts, "episodes": self.preset.episodes, "flags": self._flags, "ranges": vars(self.ranges)}

    @property
    def _flags(self) -> dict[str, str]:
        """What a study that goes on has in common with the one before; it may have more episodes."""
        preset = self.preset
        numbers = {"--seed": str(self.seed), "--pretraining": str(preset.pretraining)}
        families = ",".join(preset.families)
        return {"--preset": preset.name, "--loss": preset.loss, "--families": families, **numbers, **self.data}

    def resume(self) -> "Study":
        """Go on from the checkpoint."""
        saved, facts = read_checkpoint(self.checkpoint)
        check_same(self.checkpoint, facts["flags"], self._flags)
        try:
            self._restore(saved, facts)
        except WRONG as error:
            raise cannot_resume(self.checkpoint, DAMAGED) from error
        self.saved_s = time.monotonic()
        return self

    def _restore(self, saved: dict[str, Any], facts: dict[str, Any]) -> None:
        self.ranges = Ranges(**facts["ranges"])
        for name in STAND:
            setattr(self, name, facts[name])
        self.learner.load(saved["learner"])
        self.best = None if saved["best"] is None else saved["best"].numpy()
        self.samples = [tuple(column.numpy() for column in columns) for columns in saved["samples"]]


class Online:
    """The paper's agent: it stores a transition, learns, and only then acts, at every iteration."""

    def __init__(self, learner: Learner, epsilon: float, rng: np.random.Generator) -> None:
        self.learner, self.epsilon, self.rng = learner, epsilon, rng
        self.recorder: RolloutRecorder | None = None

    def choose(self, observation: Observation) -> int:
        """Learn from the choice before, then take theta*'s best action, or now and then any."""
        assert self.recorder is not None
        assert self.recorder.episode is not None
        self._learn(observation, self.recorder.episode.engine.calendar.now_s, self.learner.preset.gamma)
        if self.rng.random() < self.epsilon:
            return int(self.rng.integers(self.learner.actions))
        return int(self.learner.target(np.array(observation, np.float32)).argmax())

    def end(self, end_s: float) -> None:
        """The episode is over: nothing follows its last choice."""
        assert self.recorder is not None
        if self.recorder.played.choices:
            self._learn(self.recorder.played.choices[-1][0], end_s, 0.0)

    def _learn(self, observation: Observation, now_s: float, discount: float) -> None:
        assert self.recorder is not None
        played = self.recorder.played
        if played.choices:
            state, action = played.choices[-1]
            reward = (played.times_s[-1] - now_s) / PAPER_UNIT_S
            self.learner.learn(Transition(state, action, reward, observation, discount))
