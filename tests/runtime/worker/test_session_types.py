"""Models whose parameters are no float32, in a session."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import polyrhythm
from tests.runtime.jobs import Numbered, flat, make_model, make_optimizer, run_job

FLOAT64_ON_SERVERS = "policy asp runs on parameter servers, but the parameters are float64, and servers have float32"


def train(rank: int, kind: torch.dtype) -> tuple[torch.dtype, Tensor, float]:
    """Kind, parameters and loss at the end."""
    model, data = make_model(seed=rank).to(kind), Numbered(96)
    optimizer = make_optimizer(model, lr=0.1, momentum=0.9)
    with polyrhythm.session(model, optimizer) as session:
        for _ in range(3):
            for x, y, _ in session.loader(data, batch_size=4):
                optimizer.zero_grad()
                functional.cross_entropy(model(x.to(kind)).float(), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        loss = functional.cross_entropy(model(data.x.to(kind)).float(), data.y)
    return next(model.parameters()).dtype, flat(model), loss.item()


@pytest.mark.parametrize("policy", ["bsp", "asp", "local:4", "selsync:0.1", "esync"])
@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_parameters_keep_their_type(policy: str, kind: torch.dtype) -> None:
    if (policy, kind) == ("asp", torch.float64):
        with pytest.raises(AssertionError, match=FLOAT64_ON_SERVERS):
            run_job(train, 2, kind, policy=policy)
        return
    (first, one, loss), (second, other, _) = run_job(train, 2, kind, policy=policy)
    assert first == second == kind
    assert torch.equal(one, other)
    assert loss < 0.6
