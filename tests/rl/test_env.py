import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from polyrhythm.policies import parse_policy
from polyrhythm.policies.rlp.views import VIEWS
from polyrhythm.rl.acting import Acting, blank
from polyrhythm.rl.env import REWARD_S, SynchronizationEnv
from polyrhythm.rl.episode import Episode
from polyrhythm.rl.instances import Family, draw
from polyrhythm.rl.rollout import Constant


@pytest.mark.parametrize("view", ["phase", "paper"])
def test_gymnasium_accepts_it(tiny: Family, view: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of infinite bounds: losses have none
        check_env(SynchronizationEnv(tiny, view), skip_render_check=True)


def test_it_is_registered(tiny: Family) -> None:
    env = gymnasium.make("polyrhythm/Synchronization-v0", family=tiny)
    assert env.reset(seed=0)[0].shape == (14,)


@pytest.mark.parametrize(("view", "action"), [("phase", 0), ("phase", 3), ("paper", 1), ("paper", 0)])
def test_an_episode_is_the_run_of_the_same_policy(tiny: Family, view: str, action: int) -> None:
    """Stopping before each choice changes nothing, and the rewards add up to the time since the first choice."""
    instance = draw(tiny, 5)
    env = SynchronizationEnv(tiny, view)
    _, info = env.reset(options={"instance": instance})
    began_s, total, over = info["time_s"], 0.0, False
    while not over:
        _, reward, terminated, truncated, info = env.step(action)
        total, over = total + reward, terminated or truncated
    direct = Episode(instance, Acting(given=blank(view), agent=Constant(action))).run()
    assert terminated
    assert info["time_s"] == direct.time_s
    assert env.episode is not None
    stepped, whole = env.episode.result(), direct.result()
    stepped.policy = whole.policy
    assert stepped == whole
    assert -total * REWARD_S == pytest.approx(direct.time_s - began_s)


def test_always_self_is_asp(tiny: Family) -> None:
    instance = draw(tiny, 6)
    acting = Episode(instance, Acting(given=blank("paper"), agent=Constant(1))).run()
    assert acting.time_s == Episode(instance, parse_policy("asp")).run().time_s


def test_a_probe_batch_changes_no_schedule_of_one_action(tiny: Family) -> None:
    instance = draw(tiny, 6)
    probing = Episode(instance, Acting(given=blank("paper", loss="probe"), agent=Constant(1))).run()
    assert probing.time_s == Episode(instance, parse_policy("asp")).run().time_s
    env = SynchronizationEnv(tiny, "paper", loss="probe")
    env.reset(options={"instance": instance})
    while not env.step(1)[2]:
        pass
    assert env.episode is not None
    assert env.episode.time_s == probing.time_s


@pytest.mark.parametrize("rate", [1e-6, 1e6], ids=["hopeless", "diverges"])
def test_a_job_that_gets_nowhere_is_truncated(rate: float) -> None:
    env = SynchronizationEnv(Family("lost", hidden=(1,), learning_rate=rate, workers=(2,), limit_s=100.0), "paper")
    env.reset(seed=0)
    truncated = False
    while not truncated:
        _, _, terminated, truncated, info = env.step(1)
        assert not terminated
    assert info["time_s"] <= 100.0


def test_stable_baselines_trains_in_it(tiny: Family) -> None:
    dqn = pytest.importorskip("stable_baselines3").DQN
    env = SynchronizationEnv(tiny)
    agent = dqn("MlpPolicy", env, learning_starts=10, train_freq=4, batch_size=8, seed=0, device="cpu")
    agent.learn(40)
    assert agent.num_timesteps == 40
    action, _ = agent.predict(np.zeros(VIEWS["phase"].inputs, np.float32), deterministic=True)
    assert int(action) in range(4)
