import pytest
import torch

from polyrhythm.errors import PolicyError
from polyrhythm.training.combine import shares, weighted_mean


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
