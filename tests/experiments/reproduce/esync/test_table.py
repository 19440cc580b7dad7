"""Table 1 of ESync by network, and the runs that test reasons."""

import msgspec
import pytest

from polyrhythm.sim import simulate
from polyrhythm_experiments.reproduce import Lab
from polyrhythm_experiments.reproduce.esync.causes import JITTERS, cause_trials, fast_wait_s, over
from polyrhythm_experiments.reproduce.esync.table import (
    BASE,
    LINKS,
    NETWORKS,
    REFERENCE,
    Links,
    local_steps,
    of_network,
    rounds_to_target,
    table_place,
    table_trials,
)
from polyrhythm_experiments.reproduce.esync.trials import MODES, paper_cluster, timed


def test_there_is_a_run_for_each_network_mode_and_link(quick: Lab) -> None:
    places = {table_place(network, links, name) for network in NETWORKS for links in LINKS for name in MODES}
    assert {*table_trials(quick)} == places
    assert len(places) == 6 * 3 * 3


def test_a_row_has_its_bytes_and_times_and_the_task_of_all() -> None:
    rows = [of_network(paper_cluster(), network, Links()) for network in NETWORKS]
    ratios = [row.mean_compute_s[0] / row.mean_compute_s[-1] for row in rows]
    assert ratios == pytest.approx([3.5 / 0.03] * 6)
    assert [row.network.message_bytes for row in rows] == [4.0 * network.parameters for network in NETWORKS]
    assert all(row.training == paper_cluster().training for row in rows)
    assert of_network(paper_cluster(), REFERENCE, Links()).mean_compute_s == paper_cluster().mean_compute_s


def test_a_row_counts_rounds_to_the_target_and_local_steps(quick: Lab) -> None:
    place = table_place(REFERENCE, BASE, "ESync, blocking")
    runs = quick.run({"run": table_trials(quick)[place]})["run"]
    (rounds,) = rounds_to_target(runs)
    assert rounds == runs[0].updates
    assert 90 < local_steps(runs[0]) < 130


def test_a_longer_message_makes_fewer_local_steps_fit() -> None:
    largest, smallest = (
        simulate(timed(of_network(paper_cluster(), network, Links()), 60.0), "esync")
        for network in (NETWORKS[0], NETWORKS[-1])
    )
    assert local_steps(largest) < local_steps(smallest)


def test_without_jitter_a_fast_device_waits_less_than_its_step(quick: Lab) -> None:
    """The promise of section 4.1, once the first rounds no longer count."""
    trials = {name: trial for name, trial in cause_trials(quick).items() if name.startswith("jitter/")}
    scenarios = [
        msgspec.structs.replace(trials[f"jitter/{share:g}"].scenario, limits=timed(paper_cluster(), 300.0).limits)
        for share in JITTERS
    ]
    waits = [fast_wait_s([simulate(scenario, "esync")])[0] or 0.0 for scenario in scenarios]
    assert waits[0] < 0.03 < waits[-1]


def test_links_are_what_holds_asgd_up_in_the_job_on_real_processes(quick: Lab) -> None:
    trials = {name: trial for name, trial in cause_trials(quick).items() if name.startswith("played/")}
    runs = quick.run(trials)
    thin, free = (over(runs, f"played/{title}", "ASGD").value or 0.0 for title in ("thin", "free"))
    assert thin > 2 * free
