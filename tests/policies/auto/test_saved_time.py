"""What auto says that the job is ahead of BSP, held against BSP on the same cluster, through parameter servers."""

from collections.abc import Sequence

import pytest

from polyrhythm.sim import Device, Faults, Network, Scenario, Straggler, TimingWorkload, simulate

ROUNDS, BATCH, GIGABIT = 300, 16, 1e9 / 8
OFF = 0.035
"""Share of BSP's time by which the claim may be off."""

EVEN = (1.0, 1.0, 1.0, 1.0)
COMES_AND_GOES = tuple(Straggler(workers=[1], start_step=step, steps=40, slowdown=3.0) for step in (20, 100, 180))


def served(speeds: Sequence[float], message_s: float, stragglers: Sequence[Straggler] = ()) -> Scenario:
    """Workers whose steps and whose messages, alone on the server's link, take so long."""
    return Scenario(
        devices=[Device(compute_s=speed) for speed in speeds],
        network=Network(message_bytes=message_s * GIGABIT, server_gbps=1.0),
        faults=Faults(stragglers=list(stragglers)),
        workload=TimingWorkload(batch_size=BATCH, samples=ROUNDS * BATCH * len(speeds)),
    )


@pytest.mark.parametrize(
    ("speeds", "message_s", "stragglers"),
    [
        (EVEN, 0.3, ()),
        ((1.0, 2.0), 0.1, ()),
        ((1.0, 2.0), 1.0, ()),
        ((1.0, 5.0), 1.0, ()),
        ((1.0, 1.5), 0.5, ()),
        ((1.0, 1.0, 1.0, 2.0), 0.05, ()),
        ((1.0, 1.0, 1.0, 2.0), 0.33, ()),
        ((1.0, 1.0, 1.0, 10.0), 0.3, ()),
        (EVEN, 0.02, COMES_AND_GOES),
        (EVEN, 0.2, COMES_AND_GOES),
        (EVEN, 0.5, COMES_AND_GOES),
    ],
)
def test_the_job_is_ahead_of_bsp_by_what_auto_says(
    speeds: Sequence[float], message_s: float, stragglers: Sequence[Straggler]
) -> None:
    """Under unequal shares all messages come together and take longer: those of BSP would not."""
    scenario = served(speeds, message_s, stragglers)
    ours, bsp = simulate(scenario, "auto"), simulate(scenario, "bsp")
    claimed_s = ours.policy_figures["saved_s"]
    assert claimed_s == pytest.approx(bsp.duration_s - ours.duration_s, abs=OFF * bsp.duration_s)
