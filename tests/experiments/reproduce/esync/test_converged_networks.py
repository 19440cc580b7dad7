"""Table 1 of ESync to convergence: what is run for it."""

from pathlib import Path

from polyrhythm.sim.cluster.links import Network
from polyrhythm_experiments.reproduce import Lab
from polyrhythm_experiments.reproduce.esync.converged import DEEPER
from polyrhythm_experiments.reproduce.esync.converged_networks import PUBLISHED, last_place, near_place, network_trials
from polyrhythm_experiments.reproduce.esync.table import NETWORKS
from polyrhythm_experiments.reproduce.esync.trials import ESYNC_MODES, MODES
from polyrhythm_experiments.reproduce.store import ResultStore


def test_there_is_a_run_for_each_network_and_mode(quick: Lab) -> None:
    last = {last_place(network, name) for network in NETWORKS for name in ESYNC_MODES}
    near = {near_place(network, name) for network in NETWORKS for name in MODES}
    assert {*network_trials(quick)} == last | near
    assert [*PUBLISHED] == [network.name for network in NETWORKS]


def test_what_is_to_converge_has_no_target_and_ends_by_itself(quick: Lab) -> None:
    for place, trial in network_trials(quick).items():
        assert (trial.until, trial.target) == ((None, 0.87) if "/near/" in place else ("accuracy", None))


def test_a_cnn_is_trained_on_the_cluster_and_by_one_device(tmp_path: Path) -> None:
    trials = network_trials(Lab(ResultStore(tmp_path)))
    cluster, alone = (trials[f"deeper/{name}"].scenario for name in DEEPER)
    assert [each.training.model for each in (cluster, alone) if each.training] == ["cnn", "cnn"]
    assert [len(each.mean_compute_s) for each in (cluster, alone)] == [6, 1]
    assert alone.network == Network()
