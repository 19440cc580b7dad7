from itertools import islice
from pathlib import Path
from statistics import fmean

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.errors import DataError, PolyrhythmError
from polyrhythm.policies import parse_policy
from polyrhythm.rl.data import image_data, sampled, stack
from polyrhythm.rl.episode import SHARE, Episode
from polyrhythm.rl.instances import BASE_S, FAMILIES, OTHERS, SLEEP_S, Family, draw, family_named
from polyrhythm.training.data.task import Split
from polyrhythm.training.data.tasks.images import ImageSet

quiet = settings(max_examples=50, deadline=None, derandomize=True, database=None)


@quiet
@given(st.sampled_from(sorted(FAMILIES)), st.integers(0, 10**7))
def test_an_instance_keeps_to_its_family(name: str, seed: int) -> None:
    family = FAMILIES[name]
    instance = draw(family, seed)
    assert instance == draw(family, seed)
    assert instance.workers in family.workers
    assert instance.hidden in family.hidden
    assert all(BASE_S[0] <= base_s <= BASE_S[1] for base_s in instance.base_s)
    assert all(sleep_s == 0 or SLEEP_S[0] <= sleep_s <= SLEEP_S[1] for sleep_s in instance.sleep_s)
    few, most = family.stragglers or (0, instance.workers)
    assert min(few, instance.workers) <= instance.stragglers <= most


def test_stragglers_are_slow_and_streams_repeat() -> None:
    instance = draw(FAMILIES["stragglers-1"], 4)
    means = [sum(islice(stream, 400)) / 400 for stream in instance.durations()]
    expected = [base_s + sleep_s for base_s, sleep_s in zip(instance.base_s, instance.sleep_s, strict=True)]
    assert means == pytest.approx(expected, rel=0.05)
    again = [list(islice(stream, 5)) for stream in instance.durations()]
    assert again == [list(islice(stream, 5)) for stream in instance.durations()]


def test_everyone_may_sleep_in_three_steps_of_ten() -> None:
    family = Family("each step", workers=(4,), each_step=True)
    instance = draw(family, 0)
    assert instance.stragglers == 4
    for base_s, stream in zip(instance.base_s, instance.durations(), strict=True):
        slept = fmean(step_s > 1.3 * base_s for step_s in islice(stream, 2000))
        assert 0.26 < slept < 0.33


def test_three_in_ten_are_stragglers() -> None:
    share = sum(draw(FAMILIES["paper"], seed).stragglers for seed in range(300)) / 3000
    assert 0.27 < share < 0.33


def test_numbers_of_workers_are_held_out() -> None:
    assert not {2, 5, 8} & set(OTHERS)


def test_unknown_names() -> None:
    with pytest.raises(PolyrhythmError, match="unknown family 'papers': did you mean paper"):
        family_named("papers")
    with pytest.raises(DataError, match="unknown data set 'digit' for episodes: did you mean digits"):
        image_data("digit")


@pytest.mark.parametrize(
    ("name", "channels", "side", "shape"),
    [
        ("fashion-mnist", 1, 28, (1, 14, 14)),
        ("fashion-mnist-28", 1, 28, (1, 28, 28)),
        ("cifar10", 3, 32, (3, 32, 32)),
    ],
)
def test_images_are_whole_unless_the_set_is_halved(
    name: str, channels: int, side: int, shape: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(kind: ImageSet, split: str, folder: str | None) -> Split:
        images = torch.randint(256, (50, channels, side, side), dtype=torch.uint8)
        return Split(images, torch.arange(50) % 10)

    monkeypatch.setattr("polyrhythm.training.data.tasks.images.load_split", load)
    task = image_data(name, str(tmp_path))
    assert tuple(task.train.inputs.shape[1:]) == tuple(task.test.inputs.shape[1:]) == shape
    assert float(task.train.inputs.std()) == pytest.approx(1.0, abs=0.05)


def test_each_job_has_its_own_half_of_the_data() -> None:
    task = image_data("digits")
    one, other = (sampled(task, SHARE, seed, 1, 8) for seed in (0, 1))
    assert len(one.train) == len(other.train) == round(SHARE * len(task.train))
    assert not one.train.targets.equal(other.train.targets)
    assert one.test is task.test


def test_deep_stacks_start_from_he() -> None:
    deep, shallow = (next(iter(stack(400, depth, 200).parameters())) for depth in (6, 3))
    assert float(deep.detach().std()) == pytest.approx((2 / 400) ** 0.5, rel=0.05)
    assert float(shallow.detach().std()) == pytest.approx((1 / 3 / 400) ** 0.5, rel=0.05)


def test_an_episode_repeats_and_ends_at_its_target(tiny: Family) -> None:
    instance = draw(tiny, 1)
    one, other = (Episode(instance, parse_policy("asp")).run() for _ in range(2))
    assert one.reached
    assert one.result() == other.result()
    assert one.result().time_to_target_s == one.time_s == one.engine.calendar.now_s
    assert one.result().curve[-1].accuracy > 0.5


def test_a_job_that_gets_nowhere_is_given_up() -> None:
    hopeless = Family("hopeless", hidden=(0,), learning_rate=1e-6, target=0.9, workers=(2,), limit_s=200.0)
    episode = Episode(draw(hopeless, 0), parse_policy("asp")).run()
    assert not episode.reached
    assert episode.time_s == 200.0
    assert episode.result().time_to_target_s is None


def test_a_job_that_diverges_counts_as_given_up() -> None:
    wild = Family("wild", hidden=(1,), learning_rate=1e6, workers=(2,), limit_s=300.0)
    episode = Episode(draw(wild, 0), parse_policy("asp")).run()
    assert (episode.diverged, episode.time_s) == (True, 300.0)
    assert episode.result().status == "diverged"
