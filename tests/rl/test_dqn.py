from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from polyrhythm.policies.rlp.network import Layer, ValueNetwork
from polyrhythm.rl.dqn import HIDDEN, PRESETS, GreedyAgent, Learner, Replay, Transition, n_step
from polyrhythm.rl.mlp import Array

LEFT, RIGHT = (0.0,) * 14, (1.0,) * 14


def rows(*states: Sequence[float]) -> Array:
    return np.array(states, np.float32)


def chain(learner: Learner, rounds: int) -> None:
    """Two states. Action 1 ends LEFT at a cost of 3; action 0 costs 1 and leads to RIGHT, which ends at a cost of 1."""
    for _ in range(rounds):
        learner.learn(Transition(LEFT, 1, -3.0, LEFT, 0.0))
        learner.learn(Transition(LEFT, 0, -1.0, RIGHT, 1.0))
        for action in range(4):
            learner.learn(Transition(RIGHT, action, -1.0, RIGHT, 0.0))


def test_values_become_the_returns() -> None:
    learner = Learner(replace(PRESETS["tuned"], copied=0.05, rate=1e-2, updates=1.0, batch=16), seed=0)
    chain(learner, 100)
    (values,) = learner.online(rows(LEFT))
    assert values[0].item() == pytest.approx(-2.0, abs=0.3)
    assert values[1].item() == pytest.approx(-3.0, abs=0.3)


def test_the_plain_network_has_the_same_values() -> None:
    learner = Learner(PRESETS["tuned"], seed=3)
    x = np.random.default_rng(1).normal(size=14).tolist()
    assert learner.network().values(x) == pytest.approx(learner.online(rows(x))[0].tolist(), abs=1e-5)


def test_the_settings_of_the_paper() -> None:
    paper = PRESETS["paper"]
    assert (paper.gamma, paper.epsilon, paper.replay, paper.batch) == (0.8, (0.1, 0.1), 50, 32)
    assert (paper.copy_every, paper.rate, paper.adam, paper.steps) == (5, 0.01, False, 1)
    assert (paper.pretraining, paper.episodes, HIDDEN) == (100, 1000, (64, 32))


def test_the_paper_acts_with_the_copy_and_bootstraps_from_the_original() -> None:
    learner = Learner(PRESETS["paper"], seed=0)
    state = (0.5,) * 40
    for _ in range(4):
        learner.learn(Transition(state, 1, -1.0, state, 0.8))
    seen = rows(state)
    assert not np.array_equal(learner.online(seen), learner.target(seen))
    assert learner.network() == learner.target.plain()
    assert np.array_equal(learner._bootstrap(seen), learner.online(seen).max(1))
    learner.learn(Transition(state, 1, -1.0, state, 0.8))
    assert np.array_equal(learner.online(seen), learner.target(seen))


def test_the_paper_stays_finite_under_large_inputs() -> None:
    learner = Learner(PRESETS["paper"], seed=0)
    for number in range(400):
        state = (number / 100, 2.3, -0.5, 4.0) * 10
        learner.learn(Transition(state, number % 3, -10.0, state, 0.8))
    assert np.isfinite(learner.online.parameters).all()


def test_returns_of_several_steps() -> None:
    choices = [((float(at),), at % 2) for at in range(4)]
    made = n_step(choices, [-1.0] * 4, gamma=0.5, steps=2)
    assert [transition.reward for transition in made] == [-1.5, -1.5, -1.5, -1.0]
    assert [transition.discount for transition in made] == [0.25, 0.25, 0.0, 0.0]
    assert made[0].following == (2.0,)


def test_the_replay_forgets_the_oldest() -> None:
    replay = Replay(2, inputs=1)
    for number in range(3):
        replay.add(Transition((float(number),), 0, 0.0, (0.0,), 0.0))
    assert len(replay) == 2
    assert sorted(replay.states.flatten().tolist()) == [1.0, 2.0]


def test_an_agent_takes_the_best_action_of_its_network() -> None:
    network, seen = Learner(PRESETS["tuned"], seed=4).network(), np.random.default_rng(0).normal(size=(50, 14)).tolist()
    agent = GreedyAgent(network, 0.0, np.random.default_rng(0))
    assert [agent.choose(tuple(each)) for each in seen] == [network.best(each) for each in seen]


def test_what_is_explored_is_kept_to_the_end() -> None:
    network = ValueNetwork((Layer(((0.0,),) * 4, (0.0, 1.0, 0.0, 0.0)),))
    assert {GreedyAgent(network, 0.0, np.random.default_rng(0)).choose((0.0,)) for _ in range(50)} == {1}
    agents = [GreedyAgent(network, 0.2, np.random.default_rng(seed)) for seed in range(40)]
    taken = [[agent.choose((0.0,)) for _ in range(100)] for agent in agents]
    for agent, actions in zip(agents, taken, strict=True):
        assert set(actions[: agent.before]) <= {1}
        assert len(set(actions[agent.before :])) == 1
    assert {actions[-1] for actions in taken} == {0, 1, 2, 3}


def test_a_first_choice_is_kept() -> None:
    network = ValueNetwork((Layer(((0.0,), (1.0,)), (0.0, 0.0)),))
    agent = GreedyAgent(network, 0.0, np.random.default_rng(0), keep=True)
    assert [agent.choose((x,)) for x in (1.0, -1.0, -2.0)] == [1, 1, 1]


@pytest.mark.parametrize("name", PRESETS)
def test_a_learner_goes_on_from_its_state(name: str) -> None:
    width = 40 if name == "paper" else 14
    transitions = [Transition((at / 10,) * width, at % 3, -1.0, (at / 20,) * width, 0.5) for at in range(40)]
    whole, first, second = (Learner(PRESETS[name], seed=1) for _ in range(3))
    for transition in transitions:
        whole.learn(transition)
    for transition in transitions[:20]:
        first.learn(transition)
    second.load(first.state())
    for transition in transitions[20:]:
        second.learn(transition)
    assert whole.network() == second.network()
