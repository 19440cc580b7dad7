"""What the tests of real jobs are made of."""

import os
import subprocess

import pytest

from tests.runtime.jobs import first_child


def test_the_first_child_of_a_process() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 9 & wait"]) as parent:
        child = first_child(parent.pid)
        assert child != parent.pid
        os.kill(child, 9)


def test_a_process_that_has_ended_has_no_child_any_more() -> None:
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProcessLookupError):  # nobody has waited for it
            first_child(process.pid)
    with pytest.raises(ProcessLookupError):
        first_child(process.pid)
