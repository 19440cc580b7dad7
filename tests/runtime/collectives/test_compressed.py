"""Real jobs whose gradients and replicas travel compressed."""

import pytest
import torch
from torch import Tensor, nn

import polyrhythm
from polyrhythm.errors import ScenarioError
from tests.runtime.jobs import Numbered, flat, make_model, make_optimizer, run_job, step

SAMPLES = 48


def train(rank: int, policy: str, switch: str = "", normalised: bool = False) -> tuple[Tensor, float]:
    """The last parameters and loss of a worker."""
    model = make_model(seed=rank)
    if normalised:
        model = nn.Sequential(nn.BatchNorm1d(6), model)
    made = make_optimizer(model, lr=0.1)
    with polyrhythm.session(model, made, policy) as session:
        for generation in range(4):
            for number, (x, y, _) in enumerate(session.loader(Numbered(SAMPLES), 4, seed=1)):
                loss = step(model, made, x, y)
                if switch and (rank, generation, number) == (0, 1, 2):
                    session.switch(switch)
    return flat(model), loss


@pytest.mark.parametrize(
    ("policy", "compress"),
    [
        ("bsp", "topk:0.3"),
        ("asp", "int8"),
        ("local:2", "topk:0.3"),
        ("diloco:3", "int8"),
        ("fedavg:0.5,e=0.2", "fp16"),
        ("esync", "bf16"),
        ("selsync:0,aggregate=gradients", "int8"),
    ],
)
def test_a_compressed_job_learns_and_all_workers_end_alike(policy: str, compress: str) -> None:
    found = run_job(train, 2, policy, policy=policy, compress=compress)
    exact = run_job(train, 2, policy, policy=policy)
    assert torch.equal(found[0][0], found[1][0])
    assert not torch.equal(found[0][0], exact[0][0])
    assert max(loss for _, loss in found) < 1.2  # it starts at ln 3 = 1.1 on average, and far above for some batches


@pytest.mark.parametrize("policy", ["bsp", "local:3"])
def test_all_of_the_numbers_are_the_uncompressed_job(policy: str) -> None:
    found = run_job(train, 2, policy, policy=policy, compress="topk:1")
    exact = run_job(train, 2, policy, policy=policy)
    torch.testing.assert_close(found[0][0], exact[0][0], rtol=1e-4, atol=1e-6)


def test_a_switch_goes_on_with_compression_and_buffers_stay_equal() -> None:
    found = run_job(train, 2, "bsp", "local:2", True, policy="bsp", compress="topk:0.5")
    assert torch.equal(found[0][0], found[1][0])


def train_and_skip(rank: int) -> torch.Tensor:
    """Rank 1 makes no step with its third mini-batch, as under a GradScaler that has found an infinity."""
    model = make_model()
    optimizer = make_optimizer(model, lr=0.1, momentum=0.9)
    with polyrhythm.session(model, optimizer) as session:
        for number, (x, y, _) in enumerate(session.loader(Numbered(SAMPLES), 4, seed=1)):
            if (rank, number) != (1, 2):
                step(model, optimizer, x, y)
    return torch.cat([flat(model), *(state["momentum_buffer"].flatten() for state in optimizer.state.values())])


def test_one_that_skips_a_step_alone_follows_the_others() -> None:
    found = run_job(train_and_skip, 2, policy="bsp", compress="int8")
    assert torch.equal(found[0], found[1])


def test_an_unknown_compression_is_one_clear_line() -> None:
    model = make_model()
    with pytest.raises(ScenarioError, match="unknown compression 'int4': did you mean int8"):
        polyrhythm.session(model, make_optimizer(model, lr=0.1), compress="int4")
