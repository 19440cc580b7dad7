import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from polyrhythm.errors import PolyrhythmError
from polyrhythm.policies import RLP
from polyrhythm.policies.rlp.network import Learned, ValueNetwork, dump
from polyrhythm.policies.rlp.views import VIEWS
from polyrhythm.rl import learn
from polyrhythm.rl.checkpoint import check_unstarted
from polyrhythm.rl.dqn import HIDDEN, PRESETS, Preset
from polyrhythm.rl.episode import Episode
from polyrhythm.rl.instances import Family, draw
from polyrhythm.rl.learn import Study
from polyrhythm.rl.rollout import Rollout, play, play_all
from tests.full_disk import cut_short


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tiny: Family) -> None:
    monkeypatch.setattr(learn, "BATCH", 2)
    monkeypatch.setattr(learn, "CHECK", 2)
    monkeypatch.setattr(learn, "KEPT_S", 0.0)
    monkeypatch.setattr(learn, "VALIDATION", 1)
    monkeypatch.setattr(learn, "LEAST", 1)


def preset(name: str, episodes: int) -> Preset:
    return replace(PRESETS[name], families=("tiny",), pretraining=2, episodes=episodes)


class StoppedError(Exception):
    pass


def stop_after(study: Study, episodes: int) -> None:
    """Run a study that is killed after a checkpoint, in its pre-training if it is to end before any episode."""

    def tell(done: int, planned: int) -> None:
        if study.done >= episodes if study.pretrained else not episodes:
            raise StoppedError

    study.tell = tell
    with pytest.raises(StoppedError):
        study.run()


@pytest.mark.parametrize("name", ["tuned", "paper"])
def test_a_study_that_was_stopped_ends_as_if_it_had_not_been(tmp_path: Path, name: str) -> None:
    whole = Study(preset(name, 4), tmp_path / "whole.json", jobs=1).run()
    stop_after(Study(preset(name, 4), tmp_path / "parts.json", jobs=1), 0)
    stop_after(Study(preset(name, 4), tmp_path / "parts.json", jobs=1).resume(), 2)
    parts = Study(preset(name, 4), tmp_path / "parts.json", jobs=1).resume().run()
    assert parts == whole
    assert (tmp_path / "parts.json").read_bytes() == (tmp_path / "whole.json").read_bytes()


def test_a_study_that_is_killed_at_any_instance_has_kept_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learn, "KEPT_S", 3600.0)
    study = Study(preset("tuned", 2), tmp_path / "policy.json", jobs=1)

    def tell(done: int, planned: int) -> None:
        raise StoppedError

    study.tell = tell
    with pytest.raises(StoppedError):
        study.run()
    assert Study(preset("tuned", 2), tmp_path / "policy.json", jobs=1).resume().ready == 1, "the first is kept at once"


def test_the_file_says_how_it_was_learned_and_runs(tmp_path: Path, tiny: Family) -> None:
    seen: list[tuple[str, float]] = []

    class Log:
        def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
            seen.append((tag, scalar_value))

    out = tmp_path / "policy.json"
    learned = Study(preset("tuned", 2), out, jobs=1, log=Log(), command="polyrhythm learn policy.json").run()
    facts = dict(learned.training)
    assert (facts["preset"], facts["families"], facts["episodes"]) == ("tuned", "tiny", "2")
    assert [point.split(":")[0] for point in facts["curve"].split()] == ["0", "2"]
    assert learned.conditions.workers == (3, 3)
    assert {tag for tag, _ in seen} == {"train/time_per_unit", "train/loss", "validation/asp_by_learned"}
    assert Episode(draw(tiny, 9), RLP(str(out))).run().reached


def test_the_number_of_cores_changes_nothing(tmp_path: Path) -> None:
    one, two = (Study(preset("tuned", 6), tmp_path / f"{jobs}.json", jobs=jobs).run() for jobs in (1, 2))
    assert one == two


def test_the_best_network_of_the_pretraining_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen, scores = list[ValueNetwork](), iter([0.5, 0.9, 0.7, 0.6])

    def score(study: Study, network: ValueNetwork) -> float:
        seen.append(network)
        return next(scores)

    monkeypatch.setattr(learn, "PASSES", 3)
    monkeypatch.setattr(Study, "_score", score)
    learned = Study(preset("paper", 0), tmp_path / "paper.json", jobs=1).run()
    assert learned.network == seen[1] == seen[3]


def test_a_batch_is_played_while_the_last_is_learned_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, events = Study(preset("tuned", 6), tmp_path / "policy.json", jobs=1), list[str]()

    def noted(name: str) -> None:
        whole = getattr(Study, name)

        def noting(*given: Any) -> Any:
            events.append(name)
            return whole(*given)

        monkeypatch.setattr(Study, name, noting)

    monkeypatch.setattr(learn, "CHECK", 6)
    noted("_begun")
    noted("_learn_batch")
    study.run()
    assert events == ["_begun", "_begun", "_learn_batch", "_begun", "_learn_batch", "_learn_batch"]


def test_the_margin_is_in_the_file(tmp_path: Path) -> None:
    learned = Study(replace(preset("tuned", 0), margin=1.0), tmp_path / "policy.json", jobs=1).run()
    favoured = VIEWS["phase"].actions.index("1")
    last = learned.network.layers[-1]
    assert (last.weights[favoured], last.bias[favoured]) == ((0.0,) * HIDDEN[-1], 0.0)


def test_a_study_under_way_is_not_written_over(tmp_path: Path) -> None:
    stop_after(Study(preset("tuned", 4), tmp_path / "policy.json", jobs=1), 2)
    study = Study(preset("tuned", 4), tmp_path / "policy.json", jobs=1).resume()
    with pytest.raises(PolyrhythmError, match=r"is of a study after 0 of 4 jobs; go on with it by --resume, remove it"):
        check_unstarted(study.checkpoint)
    study.run()
    check_unstarted(study.checkpoint)


def test_resuming_needs_the_same_study(tmp_path: Path) -> None:
    out = tmp_path / "policy.json"
    with pytest.raises(PolyrhythmError, match=r"cannot resume from .*leave --resume out"):
        Study(preset("tuned", 2), out).resume()
    study = Study(preset("tuned", 2), out)
    study.save()
    for name, other, seed in (
        ("--seed 0", preset("tuned", 2), 1),
        ("--preset tuned", preset("paper", 2), 0),
        ("--families tiny", replace(preset("tuned", 2), families=("tiny", "paper")), 0),
        ("--pretraining 2", replace(preset("tuned", 2), pretraining=3), 0),
        ("--loss running", replace(preset("tuned", 2), loss="probe"), 0),
    ):
        with pytest.raises(PolyrhythmError, match=f"was made with {name}, but this is {name.split()[0]} "):
            Study(other, out, seed=seed).resume()
    assert Study(preset("tuned", 3), out).resume().preset.episodes == 3
    saved = torch.load(study.checkpoint, weights_only=True)
    for changes in ({"ranges": {"size": 1}}, {"ranges": None}, {"flags": 3}, {"episodes": None}):
        torch.save({**saved, "study": json.dumps({**json.loads(saved["study"]), **changes})}, study.checkpoint)
        with pytest.raises(PolyrhythmError, match="cannot resume"):
            Study(preset("tuned", 2), out).resume()
    torch.save({**saved, "learner": {}}, study.checkpoint)
    with pytest.raises(PolyrhythmError, match="cannot resume"):
        Study(preset("tuned", 2), out).resume()
    torch.save({**saved, "study": json.dumps({**json.loads(saved["study"]), "out": "x", "seed": 7})}, study.checkpoint)
    resumed = Study(preset("tuned", 2), out).resume()
    assert (resumed.out, resumed.seed) == (out, 0)
    for content in (b"nothing", b""):
        study.checkpoint.write_bytes(content)
        with pytest.raises(PolyrhythmError, match=r"cannot resume from .*: it is no checkpoint of polyrhythm learn; "):
            Study(preset("tuned", 2), out).resume()
    torch.save({"model": {}}, study.checkpoint)
    with pytest.raises(PolyrhythmError, match=r"cannot resume from .*: it is no checkpoint of polyrhythm learn; "):
        Study(preset("tuned", 2), out).resume()


def test_resuming_needs_the_same_data(tmp_path: Path) -> None:
    """Told by what is in the files, wherever they lie."""
    out, folders = tmp_path / "policy.json", [tmp_path / name for name in ("first", "moved", "other")]
    for folder, content in zip(folders, (b"1", b"1", b"2"), strict=True):
        folder.mkdir()
        (folder / "train.parquet").write_bytes(content)
    first, moved, other = map(str, folders)
    Study(preset("tuned", 2), out, folder=first).save()
    assert Study(preset("tuned", 2), out, folder=moved).resume()
    for another, there in ((other, "--data of other content"), (None, "--data of other content")):
        with pytest.raises(PolyrhythmError, match=rf"was made with {there}; give the same, or leave --resume out"):
            Study(preset("tuned", 2), out, folder=another).resume()
    Study(preset("tuned", 2), out).save()
    with pytest.raises(PolyrhythmError, match="was made without --data"):
        Study(preset("tuned", 2), out, folder=first).resume()


@pytest.mark.parametrize("how", [Study.run, Study.keep_best])
def test_a_policy_that_cannot_be_written_leaves_the_one_before(
    how: Callable[[Study], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "policy.json"
    study = Study(preset("tuned", 0), out, jobs=1)
    study.run()
    before = out.read_bytes()
    cut_short(monkeypatch)
    with pytest.raises(OSError, match="No space left"):
        how(study)
    assert out.read_bytes() == before


def test_processes_play_the_same(tiny: Family) -> None:
    rollouts = [Rollout(draw(tiny, seed), "phase", action=seed % 4) for seed in range(3)]
    assert play_all(rollouts, jobs=2) == [play(rollout) for rollout in rollouts]


def test_teachers_are_told_as_actions(tiny: Family) -> None:
    instance = draw(tiny, 2)
    asp, bsp = (play(Rollout(instance, "paper", policy=spec)) for spec in ("asp", "bsp"))
    assert {action for _, action in asp.choices} == {1}
    assert {action for _, action in bsp.choices} == {0, 2}
    assert asp.left(1.0)[0] == pytest.approx(sum(asp.rewards(1.0)))


def test_it_learns_from_the_loss_after_each_update(tmp_path: Path) -> None:
    learned = Study(replace(preset("paper", 1), loss="probe"), tmp_path / "probe.json", jobs=1).run()
    assert learned.loss == "probe"
    assert RLP(str(tmp_path / "probe.json")).losses == "probe"


def test_what_was_learned_is_plain_data(tmp_path: Path) -> None:
    learned: Learned = Study(preset("paper", 1), tmp_path / "paper.json", jobs=1).run()
    assert learned.view == "paper"
    assert len(dump(learned)) < 100_000
