import pytest
import torch
from torch import Tensor

from polyrhythm.errors import PolicyError
from polyrhythm.training.compensation import Compensation, parse_compensation
from polyrhythm.training.flat import FlatLayout
from polyrhythm.training.optimizer import FlatOptimizer
from polyrhythm.training.server import GlobalParameters, Push, shares, weighted_mean

START = torch.tensor([1.0, -2.0, 3.0])
G = torch.tensor([0.5, 1.0, -1.0])
H = torch.tensor([2.0, 0.0, 1.0])


def server(compensation: str = "none", momentum: float = 0.0) -> GlobalParameters:
    vector = START.clone()
    options = {"lr": 0.1, "momentum": momentum}
    optimizer = FlatOptimizer(torch.optim.SGD, options, vector, FlatLayout.of({"w": vector}))
    return GlobalParameters(vector, optimizer, parse_compensation(compensation))


def after(compensation: str, *pushes: Push, lr_scale: float = 1.0) -> Tensor:
    target = server(compensation)
    target.apply(pushes, lr_scale)
    return target.vector


def test_one_gradient_is_one_step_of_sgd() -> None:
    torch.testing.assert_close(after("none", Push(G), lr_scale=2.0), START - 0.2 * G)


def test_several_gradients_are_one_step_with_their_weighted_mean() -> None:
    pushes = (Push(G, weight=3.0), Push(H, weight=1.0))
    torch.testing.assert_close(after("none", *pushes), START - 0.1 * (3 * G + H) / 4)


def test_the_rate_is_divided_by_the_staleness_of_each_gradient() -> None:
    torch.testing.assert_close(after("lr-staleness", Push(G, staleness=4)), START - 0.025 * G)
    pushes = (Push(G, staleness=1), Push(H, staleness=4))
    torch.testing.assert_close(after("lr-staleness", *pushes), START - 0.1 * (G + H / 4) / 2)


def test_delay_compensation_uses_what_each_worker_read() -> None:
    near, far = START - 0.1, START + 2.0
    expected = START - 0.1 * ((G + 0.04 * G * G * (START - near)) + (H + 0.04 * H * H * (START - far))) / 2
    torch.testing.assert_close(after("dc-asgd:0.04", Push(G, near), Push(H, far)), expected)


def test_fresh_gradients_need_no_compensation() -> None:
    for spec in ("lr-staleness", "dc-asgd:0.5", "dc-asgd-adaptive:2"):
        torch.testing.assert_close(after(spec, Push(G.clone(), START)), START - 0.1 * G)


def test_a_rule_that_needs_the_backup_insists_on_it() -> None:
    with pytest.raises(AssertionError, match="dc-asgd needs the parameters that the worker read"):
        after("dc-asgd", Push(G))


def test_a_single_gradient_without_weight_is_refused() -> None:
    with pytest.raises(PolicyError, match="sum to 0"):
        after("none", Push(G, weight=0.0))


def test_pushed_gradients_of_a_mean_stay_as_they_are() -> None:
    first, second = G.clone(), H.clone()
    after("dc-asgd", Push(first, START), Push(second, START))
    assert torch.equal(first, G)
    assert torch.equal(second, H)


def test_versions_count_changes_and_readers_of_one_version_share_a_copy() -> None:
    target = server()
    before = target.read()
    assert target.read() is before
    target.apply([Push(G)])
    assert target.version == 1
    assert torch.equal(before, START)
    assert torch.equal(target.read(), target.vector)
    target.assign(H)
    assert target.version == 2
    assert torch.equal(target.read(), H)


def test_a_copy_is_overwritten_only_after_it_was_given_back() -> None:
    target = server()
    first = target.read()
    target.give_back([(first, 0)])
    assert target.read() is first
    assert target.read() is first
    target.apply([Push(G)])
    second = target.read()
    target.give_back([(first, 0)])
    target.apply([Push(G)])
    assert target.read() is not first, "it has another reader"
    assert second is not first
    target.give_back([(first, 0)])
    target.apply([Push(G)])
    assert target.read() is first
    assert torch.equal(first, target.vector)
    assert not torch.equal(second, target.vector)


def test_momentum_is_that_of_the_optimizer_unless_the_update_has_its_own() -> None:
    target = server(momentum=0.5)
    target.apply([Push(G.clone())])
    target.apply([Push(G.clone())])
    torch.testing.assert_close(target.vector, START - 0.1 * 2.5 * G)
    target.apply([Push(G.clone())], momentum=0.0)
    torch.testing.assert_close(target.vector, START - 0.1 * 3.5 * G)


def test_two_shards_do_what_one_whole_vector_does() -> None:
    whole = server("dc-asgd-adaptive", momentum=0.9)
    parts = []
    for piece in (slice(0, 1), slice(1, 3)):
        vector = START[piece].clone()
        layout = FlatLayout.of({"w": vector})
        optimizer = FlatOptimizer(torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}, vector, layout)
        parts.append((piece, GlobalParameters(vector, optimizer, parse_compensation("dc-asgd-adaptive"))))
    for gradient in (G, H, G + H):
        whole.apply([Push(gradient.clone(), START)])
        for piece, part in parts:
            part.apply([Push(gradient[piece].clone(), START[piece])])
    torch.testing.assert_close(torch.cat([part.vector for _, part in parts]), whole.vector)


def test_plain_is_the_default() -> None:
    vector = START.clone()
    sgd = FlatOptimizer(torch.optim.SGD, {"lr": 0.1}, vector, FlatLayout.of({"w": vector}))
    assert GlobalParameters(vector, sgd).compensation == Compensation()


def test_a_weighted_mean_is_the_formula_and_leaves_its_inputs() -> None:
    vectors = [torch.randn(5, generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
    copies = [vector.clone() for vector in vectors]
    expected = (1.0 * vectors[0] + 2.0 * vectors[1] + 0.0 * vectors[2]) / 3.0
    torch.testing.assert_close(weighted_mean(vectors, [1.0, 2.0, 0.0]), expected)
    torch.testing.assert_close(weighted_mean(vectors), torch.stack(vectors).mean(0))
    assert all(torch.equal(vector, copy) for vector, copy in zip(vectors, copies, strict=True))


def test_a_single_vector_is_not_copied() -> None:
    vector = torch.ones(2)
    assert weighted_mean([vector], [7.0]) is vector


@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, -1.0], [float("nan"), 1.0], [float("inf"), 1.0]])
def test_weights_without_a_sum_are_one_clear_line(weights: list[float]) -> None:
    with pytest.raises(PolicyError, match="a Sync needs a positive, finite sum"):
        shares(2, weights)
