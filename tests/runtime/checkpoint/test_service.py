"""What a coordinator's process says about a folder of checkpoints."""

from pathlib import Path
from typing import Any

import pytest

from polyrhythm.errors import UsageError
from polyrhythm.runtime.checkpoint.service import JobCheckpoints
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.job_config import JobConfig


def test_a_folder_that_is_refused_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The config is opened again when the script has completed it."""
    (tmp_path / "file").touch()
    config, loop, coordinator = JobConfig(checkpoint=str(tmp_path / "file" / "kept")), Loop(), Any
    checkpoints = JobCheckpoints(loop, coordinator, lambda act: act())  # type: ignore[arg-type]
    for _ in range(2):
        checkpoints.open(config, False)
    (line,) = caplog.messages
    with pytest.raises(UsageError, match=r"checkpoints cannot be kept in .*; give another --checkpoint"):
        checkpoints.require()
    assert line.endswith("give another --checkpoint")
    loop.close()
