"""ESync on real processes: the measurement in small, and what a page makes of it."""

from polyrhythm_experiments.reproduce import claims
from polyrhythm_experiments.reproduce.esync.live import FAST, POLICIES, SLOWDOWN, LiveESync, live_section, measure


def test_a_slow_worker_computes_and_the_others_wait_for_it() -> None:
    live = measure("bsp", 16, seed=0)
    assert len(live.fast) == FAST
    assert max(live.fast) < live.slow <= 1


def test_the_section_has_every_policy_and_the_ratios() -> None:
    """All computing all the time would make ESync's throughput (3 * 20 + 1) / 4 times SSGD's."""
    full = FAST * SLOWDOWN + 1
    speeds = {"SSGD": FAST + 1, "ASGD": full, "ESync": full}
    live = {name: [LiveESync(float(speeds[name]), 1.0, (1.0, 0.9, 1.0))] for name in POLICIES}
    section = live_section(live)
    assert [str(row.ours) for row in claims(section)] == ["15.2x", "1x"]
    table = section.grids[-1]
    assert table.rows[2] == ["ESync", "61", "100.0 %", "90.0 %"]
