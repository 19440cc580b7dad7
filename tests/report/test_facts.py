from polyrhythm.report.facts import facts, troubles
from tests.report.results import result


def test_the_conditions_are_said_in_words() -> None:
    said = facts([result(seed=seed) for seed in range(3)])
    assert said["scenario"] == "uniform"
    assert said["cluster"] == "3 workers, mini-batches of 16"
    assert said["seeds"] == "0 to 2"
    assert said["target"] == "test accuracy 0.9"
    assert said["learning rate"].startswith("linear: 0.1 for one mini-batch, m x 0.1 for an update")
    assert "(all 3: 0.3)" in said["learning rate"]


def test_real_workers_are_called_so() -> None:
    said = facts([result(where="local")])
    assert said["cluster"].startswith("3 real workers on this host (delays and bandwidth_gbps are emulated)")


def test_the_other_convention_and_none() -> None:
    assert facts([result(lr_convention="same")])["learning rate"].startswith("same: 0.1 for every update")
    assert "timing only" in facts([result(learning_rate=None, lr_convention=None)])["learning rate"]
    assert facts([result(target_accuracy=None)])["target"] == "none; ranked by duration"
    assert facts([]) == {}


def test_troubles_are_one_line_each() -> None:
    runs = [result(), result("asp", 2, status="diverged", message="loss is nan at 3 s")]
    assert troubles(runs) == ["asp, seed 2: diverged: loss is nan at 3 s"]
