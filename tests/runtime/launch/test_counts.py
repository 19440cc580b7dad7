"""What a host, and a process of it, has room for."""

import resource

import pytest

from polyrhythm.errors import UsageError
from polyrhythm.runtime.launch import torchrun
from polyrhythm.runtime.launch.counts import FILES, FILES_A_WORKER, check_open_files


def allow(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (16, most))


@pytest.mark.parametrize("most", [FILES + 2 * FILES_A_WORKER, resource.RLIM_INFINITY])
def test_what_a_process_may_open_is_enough(monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    allow(monkeypatch, most)
    check_open_files(2)


def test_a_job_for_which_too_few_files_can_be_open_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    allow(monkeypatch, 25)
    with pytest.raises(
        UsageError, match=r"^too many open files: a job of 2 workers needs at least 30 .*; raise ulimit"
    ):
        torchrun.launch(["--nproc-per-node=2", __file__])
