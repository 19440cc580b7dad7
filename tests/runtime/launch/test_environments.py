"""Workers that torchrun, Slurm or an operator of Kubernetes has started."""

import pytest

from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.launch.environments import equal_tasks, first_host, is_placed, place_of
from polyrhythm.runtime.launch.rendezvous import COORDINATOR


def test_flags_that_start_workers_and_a_job_under_way_come_first() -> None:
    torchrun = {"RANK": "1", "WORLD_SIZE": "2"}
    assert is_placed([], torchrun)
    assert is_placed(["--policy", "asp"], {"SLURM_NTASKS": "4", "SLURM_PROCID": "0"})
    assert not is_placed(["--nnodes", "2"], torchrun)
    assert not is_placed([], torchrun | {COORDINATOR: "{}"})
    assert not is_placed([], {"SLURM_NTASKS": "1"})


def test_an_operator_that_sets_the_least() -> None:
    place = place_of({"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "train-0", "MASTER_PORT": "29500"})
    assert (place["LOCAL_RANK"], place["LOCAL_WORLD_SIZE"]) == ("0", "1")
    assert place["TORCHELASTIC_RUN_ID"] == "train-0-29500"


@pytest.mark.parametrize(
    ("nodes", "host"), [("a", "a"), ("a,b", "a"), ("gpu[07-09]", "gpu07"), ("gpu[3,5],x", "gpu3"), ("n-1,n-2", "n-1")]
)
def test_first_host_of_slurm(nodes: str, host: str) -> None:
    assert first_host(nodes) == host


def test_unequal_nodes_are_refused() -> None:
    assert equal_tasks("4") == equal_tasks("4(x2)") == "4"
    with pytest.raises(PolyrhythmError, match="--ntasks-per-node"):
        equal_tasks("4(x2),3")
