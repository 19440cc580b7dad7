"""Small clusters, and a runner that separates what is printed from what is complained about."""

from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from polyrhythm.cli.app import app

TIMING = """
description = "Three workers, the last one slow"

[[devices]]
count = 2
compute_s = 0.1

[[devices]]
count = 1
compute_s = 0.3

[network]
message_bytes = 1e6
server_gbps = 10.0

[workload]
batch_size = 16
samples = 480
"""

TRAINING = """
[training]
task = "digits"
epochs = 1
batch_size = 32
learning_rate = 0.05
target_accuracy = 0.2
"""


@pytest.fixture
def timing(tmp_path: Path) -> str:
    """A scenario without a model."""
    path = tmp_path / "three.toml"
    path.write_text(TIMING, encoding="utf-8")
    return str(path)


@pytest.fixture
def training(tmp_path: Path) -> str:
    """The same cluster with a model."""
    path = tmp_path / "train.toml"
    path.write_text(TIMING + TRAINING, encoding="utf-8")
    return str(path)


@pytest.fixture
def call() -> Callable[..., Result]:
    """Run a command in this process."""
    return lambda *arguments: CliRunner().invoke(app, [str(argument) for argument in arguments])
