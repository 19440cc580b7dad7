import subprocess
import sys
from typing import Any

import msgspec
import pytest

from polyrhythm.errors import ScenarioError
from polyrhythm.training.config import TrainingConfig

IMPOSSIBLE: list[tuple[dict[str, Any], str]] = [
    ({"task": "digts"}, "did you mean digits"),
    ({"model": "cn"}, "did you mean cnn"),
    ({"task": "text", "model": "mlp"}, "unknown model of task text"),
    ({"tokens": "line"}, "known: char, word"),
    ({"schedule": "stepp"}, "did you mean step"),
    ({"lr_convention": "linar"}, "did you mean linear"),
    ({"averaged_state": "mean"}, "known: average, keep, reset"),
    ({"batch_size": 0}, "batch_size must be at least 1 but got 0"),
    ({"samples": -5}, "samples must be at least 1 but got -5"),
    ({"learning_rate": 0.0}, "learning_rate must be positive and finite but got 0.0"),
    ({"learning_rate": float("nan")}, "learning_rate must be positive and finite but got nan"),
    ({"epochs": float("inf")}, "epochs must be positive and finite but got inf"),
    ({"epochs": 1e300}, "epochs must be at most 1e+06 but got 1e+300"),
    ({"momentum": 1.0}, "momentum must be in [0, 1) but got 1.0"),
    ({"warmup": 1.5}, "warmup must be in [0, 1) but got 1.5"),
    ({"weight_decay": -1e-4}, "weight_decay must be at least 0 and finite but got -0.0001"),
    ({"target_accuracy": 90}, "target_accuracy must be in (0, 1] but got 90"),
    ({"schedule": "step"}, "give both or neither"),
    ({"decay_at": (0.5,)}, "give both or neither"),
    ({"schedule": "step", "decay_at": (0.75, 0.5)}, "must ascend"),
    ({"schedule": "step", "decay_at": (0.5, 1.0)}, "must ascend inside (0, 1)"),
    ({"optimizer_options": {"lr": 3}}, "training.optimizer_options has lr; give it as training.learning_rate"),
    ({"data_seed": -1}, "training.data_seed must be from 0 to 4294967295 but got -1"),
    ({"compression": "topk:9"}, "training.compression: compression topk needs a share"),
    ({"compensation": "x"}, "training.compensation: unknown compensation 'x'"),
    ({"nesterov": True}, "needs a momentum above 0"),
    ({"compensation": "dc-asdg"}, "did you mean dc-asgd"),
]


@pytest.mark.parametrize(("fields", "message"), IMPOSSIBLE)
def test_an_impossible_value_is_one_clear_line(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        TrainingConfig(**fields)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_fields_are_refused_when_decoded() -> None:
    with pytest.raises(msgspec.ValidationError, match="lr"):
        msgspec.convert({"lr": 0.1}, TrainingConfig)


def test_the_default_is_valid_and_round_trips() -> None:
    config = TrainingConfig()
    assert msgspec.convert(msgspec.to_builtins(config), TrainingConfig) == config


def test_samples_take_the_place_of_epochs() -> None:
    assert TrainingConfig(epochs=2.5).workload_samples(100) == 250
    assert TrainingConfig(epochs=2.5, samples=7).workload_samples(100) == 7


def test_evaluations_are_spread_evenly_unless_given() -> None:
    assert TrainingConfig(samples=1000).evaluation_interval(50) == 50
    assert TrainingConfig(samples=3).evaluation_interval(50) == 1
    assert TrainingConfig(eval_every_samples=17).evaluation_interval(50) == 17


def test_the_first_model_of_a_task_is_its_default() -> None:
    assert TrainingConfig(task="cifar10").model_name == "resnet20"
    assert TrainingConfig(task="cifar10", model="cnn").model_name == "cnn"


def test_configurations_do_not_import_torch() -> None:
    code = "import sys, polyrhythm.training.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
