"""What has no way to run on real workers is refused in one line."""

from dataclasses import replace
from typing import ClassVar

import pytest

from polyrhythm.core import Traits
from polyrhythm.core.placement import apart_after, runtime_placement
from polyrhythm.errors import PolicyError
from polyrhythm.policies import parse_policy
from polyrhythm.policies.asp import ASP


class Hasty(ASP):
    """Its workers read the servers' parameters without an answer."""

    traits: ClassVar[Traits] = replace(ASP.traits, waits=False)


def test_workers_that_go_on_without_an_answer_step_on_replicas() -> None:
    assert runtime_placement(parse_policy("esync")) == "coordinator"
    assert runtime_placement(parse_policy("esync:blocking=false")) == "coordinator"
    with pytest.raises(PolicyError) as refused:
        runtime_placement(Hasty())
    assert str(refused.value) == (
        "policy asp cannot run on real workers: whoever steps on the servers' parameters waits for the answer to its "
        "report; simulate it"
    )


def test_a_probe_batch_is_evaluated_in_the_simulator_only() -> None:
    assert runtime_placement(parse_policy("rlp")) == "servers"
    for spec in ("rlp:loss=probe", "switch:rlp:loss=probe@0.5,asp", "elastic:(rlp:loss=probe)"):
        with pytest.raises(PolicyError, match="cannot run on real workers: servers have the newest parameters"):
            runtime_placement(parse_policy(spec))


@pytest.mark.parametrize("spec", ["switch:(auto:async)@0.5,asp", "switch:asp@0.5,(auto:drop=true)"])
def test_a_part_that_chooses_others_is_refused_unless_one_placement_serves_all(spec: str) -> None:
    """Nobody asks it there what it wants, so what it is allowed was never tried, without a word."""
    assert runtime_placement(parse_policy("switch:auto@0.5,asp")) == "every_rank"
    with pytest.raises(PolicyError, match="as a part of a sequence, where all that it chooses has one"):
        runtime_placement(parse_policy(spec))


def test_what_comes_after_a_part_is_known_by_its_last_place() -> None:
    twice = parse_policy("switch:bsp@0.3,asp@0.3,bsp")
    assert not apart_after(twice, "bsp")
    assert not apart_after(twice, "asp")
    assert not apart_after(parse_policy("switch:bsp@0.5,local:4"), "bsp")
    assert apart_after(parse_policy("switch:bsp@0.2,(switch:local:4@0.5,esync)"), "local:4")
    assert not apart_after(parse_policy("asp"), "asp")
    assert not apart_after(parse_policy("switch:bsp@1,asp"), "bsp")
