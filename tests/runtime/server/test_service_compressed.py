"""Gradients that travel compressed to the parameter shards, over both carriers."""

import pytest
import torch

from polyrhythm.training.optimizer import OptimizerState
from tests.runtime.shard_bench import MakeBench

EMPTY = OptimizerState({}, {})


@pytest.mark.parametrize(("compress", "wire"), [("fp16", "float16"), ("bf16", "bfloat16")])
def test_half_precision_on_the_wire_keeps_full_precision_at_the_shard(
    make: MakeBench, compress: str, wire: str
) -> None:
    bench = make("tcp", 2)
    worker, exact = bench.worker(0, compress=compress), bench.worker(1)
    start = torch.linspace(0.1, 1.0, bench.size)
    worker.upload(start, EMPTY, version=0)
    gradient = torch.full((bench.size,), 2.0**-10)
    bench.push(worker, 0, gradient)
    bench.apply((0, 0))
    assert torch.equal(bench.pull(exact, 1), start - gradient)
    narrow = getattr(torch, wire)
    assert torch.equal(bench.pull(worker, 1), (start - gradient).to(narrow).float())


@pytest.mark.parametrize("carrier", ["unix", "tcp"])
@pytest.mark.parametrize("shards", [1, 2])
def test_what_is_not_sent_of_a_gradient_is_sent_later(make: MakeBench, carrier: str, shards: int) -> None:
    bench = make(carrier, shards)
    worker = bench.worker(0, compress="topk:0.25")
    worker.upload(torch.zeros(bench.size), EMPTY, version=0)
    gradient = torch.linspace(1.0, 2.0, bench.size)
    bench.push(worker, 0, gradient)
    bench.apply((0, 0))
    arrived = -bench.pull(worker, 1)
    sent = arrived != 0
    assert 0 < int(sent.sum()) <= bench.size // 4 + shards
    assert torch.equal(arrived[sent], gradient[sent])
    for number in range(1, 16):
        bench.push(worker, number, torch.zeros(bench.size))
        bench.apply((0, number))
    torch.testing.assert_close(-bench.pull(worker, 16), gradient)


@pytest.mark.parametrize("carrier", ["unix", "tcp"])
def test_eight_bits_arrive_within_a_step(make: MakeBench, carrier: str) -> None:
    bench = make(carrier, 1)
    worker = bench.worker(0, compress="int8")
    worker.upload(torch.zeros(bench.size), EMPTY, version=0)
    gradient = torch.linspace(-1.0, 1.27, bench.size)
    bench.push(worker, 0, gradient)
    bench.apply((0, 0))
    arrived = -bench.pull(worker, 1)
    assert not torch.equal(arrived, gradient)
    torch.testing.assert_close(arrived, gradient, atol=0.0101, rtol=0.0)
