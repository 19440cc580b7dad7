"""What is looked at of a data set, and what is never asked."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.data import Dataset, Subset, TensorDataset

from polyrhythm.training.data.fingerprint import alike, content_of, digest, probes, selection_of


class Untouchable(Dataset[Tensor]):
    """May be asked for its length only."""

    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> Tensor:
        raise AssertionError("asked for a sample")


class Augmented(TensorDataset):
    """Its items are random."""

    def __getitem__(self, index: int) -> tuple[Tensor, ...]:
        raise AssertionError("asked for a sample")


def made(seed: int, samples: int = 20) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    return TensorDataset(torch.randn(samples, 3, generator=generator), torch.arange(samples))


@given(samples=st.integers(0, 1000))
def test_the_probes_are_samples_from_the_first_to_the_last(samples: int) -> None:
    found = probes(samples)
    assert sorted({*found}) == list(found)
    assert {*found} <= {*range(samples)}
    assert not samples or (found[0], found[-1]) == (0, samples - 1)


@pytest.mark.parametrize("dataset", [Untouchable(), Subset(Untouchable(), range(3)), Augmented(torch.ones(10, 2))])
def test_nothing_that_may_be_random_is_asked(dataset: Dataset[Any]) -> None:
    assert content_of(dataset) == ()


def test_no_generator_moves() -> None:
    before = torch.get_rng_state()
    content_of(made(0))
    assert torch.equal(torch.get_rng_state(), before)


def test_equal_data_are_alike_and_others_are_not() -> None:
    one, other = content_of(made(0)), content_of(made(1))
    assert one == content_of(made(0))
    assert len(one) == 2 * len(probes(20))
    assert not all(map(alike, one, other))


def test_what_another_processor_has_rounded_otherwise_is_alike() -> None:
    x = made(0).tensors[0]
    assert all(map(alike, content_of(TensorDataset(x)), content_of(TensorDataset(x * (1 + 1e-6)))))


def test_the_place_of_a_number_counts() -> None:
    (one, *_), (other, *_) = (content_of(TensorDataset(torch.tensor([row]))) for row in ([1.0, 2.0], [2.0, 1.0]))
    assert not alike(one, other)


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.bfloat16, torch.complex64, torch.int64])
def test_numbers_of_every_kind(dtype: torch.dtype) -> None:
    assert content_of(TensorDataset(torch.tensor([[0, 1], [1, 1]]).to(dtype))) == (1.0, 1.5)


def test_a_subset_is_told_by_its_indices_and_its_samples() -> None:
    inner = made(0)
    first, second = Subset(inner, [1, 2, 3, 4]), Subset(inner, [1, 2, 3, 5])
    assert selection_of(first) != selection_of(second)
    assert selection_of(first) == selection_of(Subset(inner, torch.tensor([1, 2, 3, 4])))  # type: ignore[arg-type]
    assert selection_of(Subset(first, [0])) != selection_of(Subset(first, [1]))
    assert selection_of(inner) == ""
    assert content_of(first) == content_of(TensorDataset(*(tensor[1:5] for tensor in inner.tensors)))


def test_a_sparse_tensor_is_left_out() -> None:
    assert content_of(TensorDataset(torch.eye(4).to_sparse(), torch.arange(4))) == (0.0, 1.0, 2.0, 3.0)


def test_a_digest_follows_the_order() -> None:
    assert digest([[1, 2]]) != digest([[2, 1]])
