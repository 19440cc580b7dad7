"""Greedy: when the last policy takes over, and that BSP gets its share."""

from polyrhythm.core import Sync
from polyrhythm.policies import parse_policy
from polyrhythm.testing import ClusterScript, ScriptPlayer

SCRIPT = ClusterScript(
    workers=4,
    durations=((1.0,), (1.0,), (1.0,), (*[1.0] * 6, *[3.0] * 6, *[1.0] * 90)),
    total_samples=200,
    dataset_samples=200,
)


def test_the_last_rule_is_in_force_while_somebody_straggles() -> None:
    stage = ScriptPlayer(parse_policy("greedy:(switch:bsp@0.5,asp),window=2"), SCRIPT)
    policies, state = [], stage.policy.init(stage.cluster)
    stage.play()
    for event, _ in stage.entries:
        state, _ = stage.policy.decide(state, event)
        policies.append(stage.policy.in_force(state).spec)
    changes = [policy for k, policy in enumerate(policies) if k == 0 or policy != policies[k - 1]]
    assert changes == ["bsp", "asp", "bsp", "asp"]


def test_bsp_gets_its_share_all_the_same() -> None:
    stage = ScriptPlayer(parse_policy("greedy:(switch:bsp@0.5,asp),window=2"), SCRIPT).play()
    taken = [d.workers for _, decisions in stage.entries for d in decisions if isinstance(d, Sync)]
    assert sum(len(workers) for workers in taken if len(workers) == 4) in range(96, 108)


def test_without_a_sequence_the_policy_runs_as_it_is() -> None:
    one, other = (
        ScriptPlayer(parse_policy("greedy:(ssp:2),window=1"), SCRIPT).play(),
        ScriptPlayer(parse_policy("ssp:2"), SCRIPT).play(),
    )
    assert one.entries == other.entries
