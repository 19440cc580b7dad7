import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.errors import PolyrhythmError, ScenarioError
from polyrhythm.training.codecs import Compressor, decode, encode
from polyrhythm.training.compression import BLOCK, Compression, parse_compression
from polyrhythm.training.config import TrainingConfig

SPECS = ["none", "fp16", "bf16", "int8", "topk:0.1", "topk:1"]
FLOATS = st.floats(-1e4, 1e4, width=32)


def vector(size: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("size", [1, 7, BLOCK, 3 * BLOCK + 5])
def test_a_payload_has_the_bytes_that_are_announced(spec: str, size: int) -> None:
    compression = parse_compression(spec)
    payload = encode(compression, vector(size))
    assert payload.dtype == torch.uint8
    assert len(payload) == compression.size(size)
    assert decode(compression, payload, size).shape == (size,)


@pytest.mark.parametrize("spec", ["none", "topk:1"])
@settings(derandomize=True, deadline=None)
@given(values=st.lists(FLOATS, min_size=1, max_size=40))
def test_what_is_sent_in_full_arrives_exactly(spec: str, values: list[float]) -> None:
    sent = torch.tensor(values)
    assert torch.equal(Compressor(parse_compression(spec))(sent), sent)


@pytest.mark.parametrize(("spec", "error"), [("fp16", 2**-11), ("bf16", 2**-8)])
def test_halves_are_near(spec: str, error: float) -> None:
    sent = vector(1000)
    arrived = Compressor(parse_compression(spec))(sent)
    assert float(((arrived - sent) / sent).abs().max()) <= error


def test_a_half_has_no_infinity_that_was_none() -> None:
    arrived = Compressor(Compression("fp16"))(torch.tensor([1e9, -1e9, math.inf]))
    assert arrived.tolist() == [65504.0, -65504.0, math.inf]


def test_eight_bits_are_off_by_less_than_a_step_and_right_on_average() -> None:
    sent = vector(2 * BLOCK)
    steps = sent.view(2, BLOCK).abs().amax(1).div(127).repeat_interleave(BLOCK)
    send = Compressor(Compression("int8"), torch.Generator().manual_seed(1))
    arrived = torch.stack([send(sent) for _ in range(400)])
    assert bool(((arrived - sent).abs() <= steps * 1.001).all())
    # The mean of 400 roundings has a standard error of at most step / 40; of 512 numbers none is five of them off.
    assert bool(((arrived.mean(0) - sent).abs() <= steps / 8).all())


def test_a_block_of_zeros_stays_zero() -> None:
    assert not Compressor(Compression("int8"))(torch.zeros(BLOCK + 3)).any()


def test_the_largest_are_sent() -> None:
    sent = torch.tensor([0.1, -5.0, 2.0, 0.0, -3.0])
    assert Compressor(parse_compression("topk:0.4"))(sent).tolist() == [0.0, -5.0, 0.0, 0.0, -3.0]


@settings(derandomize=True, deadline=None, max_examples=50)
@given(st.integers(1, 60), st.integers(1, 12), st.floats(0.01, 1.0))
def test_what_was_sent_and_what_is_left_are_all_that_was_given(size: int, rounds: int, share: float) -> None:
    send = Compressor(Compression("topk", share))
    given_ = [vector(size, seed) for seed in range(rounds)]
    sent = torch.stack([send(part) for part in given_]).sum(0)
    torch.testing.assert_close(sent + send.rests[0], torch.stack(given_).sum(0), atol=1e-5, rtol=1e-5)


def test_slices_keep_rests_of_their_own() -> None:
    send, whole = Compressor(parse_compression("topk:0.5")), torch.tensor([3.0, 1.0, 4.0, 2.0])
    for start in (0, 2):
        send(whole[start : start + 2], start)
    assert [rest.tolist() for rest in send.rests.values()] == [[0.0, 1.0], [0.0, 2.0]]
    assert send(torch.zeros(2), start=2).tolist() == [0.0, 2.0]


def test_what_is_given_stays_as_it_is() -> None:
    sent, before = vector(50), vector(50)
    for spec in SPECS:
        Compressor(parse_compression(spec))(sent)
    assert torch.equal(sent, before)


def test_the_seed_and_the_worker_decide_what_is_random() -> None:
    def arrived(seed: int, worker: int) -> list[float]:
        compressor = Compressor.of(Compression("int8"), seed, worker)
        assert compressor is not None
        return compressor(vector(300)).tolist()

    assert arrived(1, 2) == arrived(1, 2)
    assert len({tuple(arrived(*pair)) for pair in [(1, 2), (1, 3), (2, 2)]}) == 3
    assert Compressor.of(Compression("none"), 0, 0) is None


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("fp8", "unknown compression 'fp8': known: bf16, fp16, int8, none, topk"),
        ("int8:3", "int8 takes no value, but got 'int8:3'"),
        ("topk", r"needs a share in \(0, 1\].*got 'topk'"),
        ("topk:0", r"needs a share in \(0, 1\].*got 'topk:0'"),
        ("topk:x", r"needs a share in \(0, 1\].*got 'topk:x'"),
    ],
)
def test_a_wrong_spec_is_one_clear_line(spec: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        TrainingConfig(compression=spec)


def test_a_payload_that_is_none_is_refused() -> None:
    with pytest.raises(PolyrhythmError, match=r"7 bytes are no int8 payload of 5 numbers, which has 9"):
        decode(Compression("int8"), torch.zeros(7, dtype=torch.uint8), 5)
    wrong = encode(Compression("topk", 0.2), torch.arange(10.0))
    with pytest.raises(PolyrhythmError, match="names one that is not among them"):
        decode(Compression("topk", 0.4), wrong, 5)
