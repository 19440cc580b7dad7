from collections.abc import Callable

from typer.testing import Result

from polyrhythm.cli.listings import bounds, example, signature
from polyrhythm.policies import BUILT_IN, SSP, KSync


def test_every_policy_is_listed_with_its_defaults_and_venue(call: Callable[..., Result]) -> None:
    shown = call("policies").stdout
    for cls in BUILT_IN.values():
        line = next(line for line in shown.splitlines() if line.split()[:1] == [signature(cls)])
        assert cls.summary in line
        assert line.rstrip().endswith(example(cls).traits.placement)


def test_bounds_are_those_of_the_policy() -> None:
    assert bounds(SSP) == "lead <= 4, staleness <= 49"
    assert bounds(KSync) == "staleness <= 0 (k = 4)"
    assert bounds(BUILT_IN["asp"]) == "none"


def test_every_scenario_is_listed(call: Callable[..., Result]) -> None:
    shown = call("scenarios").stdout
    for name in (
        "local-straggler",
        "uniform",
        "mixed-hardware",
        "thin-links",
        "stragglers-mild",
        "stragglers-moderate",
        "random-sleep",
    ):
        assert name in shown
