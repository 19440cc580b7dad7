"""Where servers make the steps, a script that writes into parameters by itself is told so."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import polyrhythm
from polyrhythm.errors import UsageError
from polyrhythm.runtime.worker.parameter_server import LOOK_EVERY, WRITTEN, LateBeginning, MissingGradients
from polyrhythm.runtime.worker.replica import ScriptReplica
from tests.runtime.jobs import Numbered, flat, make_model, make_optimizer, run_job

Capture = pytest.CaptureFixture[str]


def train(rank: int, clipped: int | None, samples: int = 48) -> str:
    """What the script is told that clips its parameters in this step, after or before the optimizer's."""
    model = make_model()
    optimizer = make_optimizer(model, lr=0.1)
    try:
        with polyrhythm.session(model, optimizer) as session:
            for number, (x, y, _) in enumerate(session.loader(Numbered(samples), 4)):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                if number == clipped:
                    with torch.no_grad():
                        next(model.parameters()).clamp_(-0.01, 0.01)
    except UsageError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("clipped", [0, 1])
def test_parameters_that_the_script_changes_are_refused(clipped: int) -> None:
    assert run_job(train, 1, clipped, policy="asp") == [WRITTEN]


def test_it_is_looked_now_and_then_later_too() -> None:
    assert run_job(train, 1, LOOK_EVERY - 2, 4 * (LOOK_EVERY + 2), policy="asp") == [WRITTEN]


@pytest.mark.parametrize("policy", ["asp", "k-sync:1"])
def test_a_script_that_does_not_goes_on(policy: str) -> None:
    assert run_job(train, 2, None, policy=policy) == ["", ""]


@pytest.mark.parametrize("policy", ["bsp", "local:2"])
def test_on_workers_it_may(policy: str) -> None:
    assert run_job(train, 2, 0, policy=policy) == ["", ""]


def ask(rank: int, begun: Path, made: Path) -> str:
    """What rank 1 is told, which asks for the job's state in its first step, while rank 0 makes another."""
    model = make_model()
    optimizer = make_optimizer(model, lr=0.1)
    turns: dict[tuple[int, int], Callable[[], object]] = {
        (0, 1): begun.read_text,
        (0, 2): partial(made.write_text, "-"),
    }
    try:
        with polyrhythm.session(model, optimizer) as session:
            for number, (x, y, _) in enumerate(session.loader(Numbered(48), 4)):
                turns.get((rank, number), str)()
                if (rank, number) == (1, 0):
                    read = flat(model)
                    begun.write_text("-")
                    made.read_text()
                    session.state_dict()
                    assert not torch.equal(flat(model), read), "the servers have made a step meanwhile"
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    except UsageError as error:
        return str(error)
    return ""


def test_one_that_asks_for_the_state_goes_on(tmp_path: Path) -> None:
    begun, made = tmp_path / "begun", tmp_path / "made"
    os.mkfifo(begun)
    os.mkfifo(made)
    assert run_job(ask, 2, begun, made, policy="asp") == ["", ""]


def late_beginning(*, stateful: bool = False, **options: Any) -> tuple[nn.Linear, LateBeginning]:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, **options)
    if stateful:
        model.weight.grad = torch.ones(1, 2)
        optimizer.step()
    return model, LateBeginning(ScriptReplica(model, optimizer))


def said_at(
    steps: list[tuple[bool, bool]], model: nn.Linear, late: LateBeginning | MissingGradients, capsys: Capture
) -> list[str]:
    """What is said in each step, in which weight and bias have a gradient or not."""
    said = []
    for weight, bias in steps:
        model.weight.grad = torch.ones(1, 2) if weight else None
        model.bias.grad = torch.ones(1) if bias else None
        late.look()
        said.append(capsys.readouterr().err)
    return said


def test_a_parameter_whose_momentum_begins_late_is_named_once(capsys: Capture) -> None:
    model, late = late_beginning(momentum=0.9, dampening=0.5)
    said = said_at([(True, False), (True, False), (True, True), (True, True)], model, late, capsys)
    assert said[2].startswith("polyrhythm: bias, which trains later than others, begins its momentum with")
    assert (said[:2], said[3:]) == (["", ""], [""])


def test_so_is_one_that_has_no_state_of_a_phase_before(capsys: Capture) -> None:
    model, late = late_beginning(stateful=True, momentum=0.9, dampening=0.5)
    assert said_at([(True, True)], model, late, capsys)[0].startswith("polyrhythm: bias,")


@pytest.mark.parametrize("options", [{"momentum": 0.9}, {}])
def test_where_it_makes_no_difference_nothing_is_said(capsys: Capture, options: dict[str, Any]) -> None:
    model, late = late_beginning(**options)
    assert said_at([(True, False), (True, True)], model, late, capsys) == ["", ""]


def test_parameters_that_skip_a_step_are_not_late(capsys: Capture) -> None:
    model, late = late_beginning(momentum=0.9, dampening=0.5)
    assert said_at([(True, True), (True, False), (True, True)], model, late, capsys) == ["", "", ""]


def missing_gradients(**options: Any) -> tuple[nn.Linear, MissingGradients]:
    model = nn.Linear(2, 1)
    return model, MissingGradients(ScriptReplica(model, torch.optim.SGD(model.parameters(), lr=0.1, **options)))


ALL, WITHOUT_BIAS, NOTHING = (True, True), (True, False), (False, False)


@pytest.mark.parametrize(
    ("options", "steps", "at"),
    [
        ({"weight_decay": 0.1}, [NOTHING, WITHOUT_BIAS, WITHOUT_BIAS], 1),
        ({"momentum": 0.9}, [WITHOUT_BIAS, ALL, WITHOUT_BIAS, WITHOUT_BIAS], 2),
    ],
)
def test_a_parameter_that_servers_move_without_a_gradient_is_named_once(
    options: dict[str, Any], steps: list[tuple[bool, bool]], at: int, capsys: Capture
) -> None:
    model, missing = missing_gradients(**options)
    said = said_at(steps, model, missing, capsys)
    assert said[at].startswith("polyrhythm: bias has no gradient in a step, which to servers is one of zero")
    assert [line for number, line in enumerate(said) if number != at] == [""] * (len(steps) - 1)


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}])
def test_one_that_stays_as_it_is_is_not(options: dict[str, Any], capsys: Capture) -> None:
    model, missing = missing_gradients(**options)
    assert said_at([WITHOUT_BIAS, WITHOUT_BIAS], model, missing, capsys) == ["", ""]
