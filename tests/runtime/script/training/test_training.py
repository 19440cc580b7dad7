"""What a training hears of its script."""

import threading
from collections.abc import Iterator
from unittest.mock import Mock

import pytest
import torch

from polyrhythm.runtime.script.training.training import Training


@pytest.fixture
def training() -> Iterator[Training]:
    """One whose script is in its loop, where workers make steps of their own."""
    made = Training(Mock(), Mock(), Mock())
    made.session = Mock(aligned=False, apart=True, policy="asp", parameters=[])
    made._steps = Mock(own=False, drawn=False)
    made._thread = threading.get_ident()
    yield made
    made.warm_up.seen.close(compiled=False)


@pytest.mark.parametrize("aside", [False, True])
def test_a_collective_of_another_thread_says_nothing_of_the_loop(training: Training, aside: bool) -> None:
    """Such as of a checkpoint that is written while the script trains: all ranks come to it."""
    alone: list[bool] = []

    def come() -> None:
        alone.append(training.collective("gather", [torch.zeros(1)], None))

    thread = threading.Thread(target=come)
    if aside:
        thread.start()
        thread.join()
    else:
        come()
    assert alone == [not aside]
    assert training._steps.is_open.called is not aside  # type: ignore[attr-defined]
