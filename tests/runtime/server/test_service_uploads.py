"""What an upload to the parameter shards means for workers that wait for its version."""

import pytest
import torch

from polyrhythm.runtime.wire.shard_protocol import Download
from polyrhythm.training.optimizer import OptimizerState
from tests.runtime.shard_bench import MakeBench

EMPTY = OptimizerState({}, {})


@pytest.mark.parametrize("carrier", ["unix", "tcp"])
def test_who_waits_for_a_version_gets_it_from_an_upload_too(make: MakeBench, carrier: str) -> None:
    bench = make(carrier)
    source, waiter = bench.worker(0), bench.worker(1)
    buffers = bench.group.service.all_buffers[1]
    waiter.channels[0].send(Download(5))
    bench.until(lambda: buffers.waiting)
    source.upload(torch.ones(bench.size), EMPTY, version=5)
    bench.until(lambda: buffers.waiting is None)
