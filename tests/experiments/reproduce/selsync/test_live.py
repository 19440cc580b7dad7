"""SelSync on real processes: the measurement in small, and what a page makes of it."""

from polyrhythm_experiments.reproduce import claims
from polyrhythm_experiments.reproduce.selsync.live import POLICIES, LiveSelSync, live_section, measure, most


def test_steps_without_an_exchange_are_counted() -> None:
    live = measure("fedavg:1,0.25", 1, seed=0)
    assert live.lssr is not None
    assert 0.8 < live.lssr < 1
    assert live.accuracy is not None


def test_the_section_has_every_policy_and_the_ratios() -> None:
    speeds, scores = (10.0, 40.0, 25.0), (0.92, 0.88, 0.91)
    jobs = {name: [LiveSelSync(speed, 0.5, score)] for name, speed, score in zip(POLICIES, speeds, scores, strict=True)}
    section = live_section(jobs)
    assert [str(row.ours) for row in claims(section)] == ["2.5x", "-1.0 pt"]
    table = section.grids[-1]
    assert table.rows[1] == ["FedAvg (1, 0.25)", "40", "0.5", "88.0 %"]


def test_an_lssr_allows_only_so_much() -> None:
    assert most([LiveSelSync(10.0, 0.5, 0.9)]) == (
        "The LSSR is 0.5 here, which allows 1.86x if an exchange takes 12 steps and nothing else takes time."
    )
