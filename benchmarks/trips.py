"""The way of one event through the modules: how many it enters, how often it moves, how often it comes back.

From the profile of real runs (`sys.setprofile`), every call into a module of the package, in order:

- rooms: distinct modules;
- moves: calls into another module than that of the call before;
- returns: moves to a module that the trip has been in before, so that ``returns == moves - (rooms - 1)``.

This is what gives the figures of 29fff6e in `BEFORE`, to within a few moves: how the profile was cut there is not
known. Beside it stands what a reader goes through who follows each call to its end: every call into a module and every
return to one, and of these moves those that turn back at once (A, B, A). Code outside of the package, such as torch's,
is not seen: what it calls counts as called by whoever has called it.

- simulator: from the last report of a round of BSP to the first worker that has been released.
- worker: one step of ASP, from ``optimizer.step()`` to the next mini-batch.
- coordinator: one push, one turn of its loop.
- compare: ``polyrhythm compare --policies bsp``, from the arguments to the page. Only its rooms are counted.

Of many events of a run the commonest way counts. ``--show TRIP`` prints its modules in order.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any, TypeAlias

from _recorder import RECORD, Call, Recorder, read_processes, turns
from rich.console import Console
from rich.table import Table

BEFORE = {"simulator": "24 / 69 / 46", "worker": "25 / 85 / 61", "coordinator": "22 / 53 / 32", "compare": "77"}
"""Rooms, moves and returns at 29fff6e."""

SAMPLES, BATCH = 640, 8


def package() -> str:
    """Folder of the package."""
    spec = find_spec("polyrhythm")
    assert spec, "polyrhythm is not installed"
    return str(Path(spec.origin or "").parent)


# -- counting ----------------------------------------------------------------------------------------------------------


Way: TypeAlias = tuple[str, ...]


def ways(calls: Iterable[Call]) -> tuple[Way, Way]:
    """The modules that a trip calls, in order, and those that it goes through if each return counts too."""
    inside = [call for call in calls if call.kind != "c" and call.module]
    called = (module for module, _ in groupby(call.module for call in inside if call.kind == "call"))
    return tuple(called), tuple(module for module, _ in groupby(call.module for call in inside))


def came_back(way: Way) -> int:
    """Moves to a module that the way has been in before.

    >>> came_back(("a", "b", "a", "c", "b"))
    2
    """
    return len(way) - len(set(way))


def turned_back(way: Way) -> int:
    """Moves to the module that the move before has left.

    >>> turned_back(("a", "b", "a", "c", "b"))
    1
    """
    return sum(first == third for first, third in zip(way, way[2:], strict=False))


def usual(trips: Iterable[Sequence[Call]]) -> tuple[Way, Way]:
    """The way that most of these events have gone."""
    return Counter(map(ways, trips)).most_common(1)[0][0]


# -- trips -------------------------------------------------------------------------------------------------------------


def simulator() -> tuple[Way, Way]:
    """A round of BSP that trains digits, on eight equal workers with a parameter server."""
    from polyrhythm.policies import parse_policy
    from polyrhythm.sim import load_scenario, simulate

    scenario = load_scenario("uniform")
    recorder = Recorder(package())
    recorder.start()
    simulate(scenario, parse_policy("bsp"))
    recorder.stop()
    return usual(until_released(turn) for turn in turns(recorder.calls, "policies/bsp.py") if released(turn))


def released(turn: Sequence[Call]) -> bool:
    """Whether this report was the last of its round."""
    return any(call.kind == "c" and call.module == "heappush" for call in until_released(turn))


def until_released(turn: Sequence[Call]) -> Sequence[Call]:
    """What happens until the first appointment that follows from the decision."""
    decided = next((i for i, call in enumerate(turn) if call.module.endswith("policies/bsp.py")), len(turn))
    pushed = (i for i, call in enumerate(turn) if i > decided and call.kind == "c" and call.module == "heappush")
    return turn[: next(pushed, len(turn)) + 1]


def train(step: Callable[[Callable[[], Any]], Any]) -> None:
    """A job of one worker under ASP; `step` is called with what makes one step and draws the next mini-batch."""
    import torch
    from torch import nn
    from torch.utils.data import TensorDataset

    import polyrhythm

    model = nn.Linear(4, 2)
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    dataset = TensorDataset(torch.randn(SAMPLES, 4), torch.randint(0, 2, (SAMPLES,)))
    with polyrhythm.session(model, sgd, policy="asp") as session:
        batches = iter(session.loader(dataset, batch_size=BATCH))
        batch = next(batches, None)

        def make() -> Any:
            sgd.step()
            return next(batches, None)

        while batch is not None:
            sgd.zero_grad()
            nn.functional.cross_entropy(model(batch[0]), batch[1]).backward()  # type: ignore[no-untyped-call]
            batch = step(make)


def worker_main() -> None:
    """Body of the worker: prints the usual way of a step."""
    recorder, trips = Recorder(package()), list[list[Call]]()

    def step(make: Callable[[], Any]) -> Any:
        recorder.calls.clear()
        recorder.start()
        batch = make()
        recorder.stop()
        trips.append(recorder.calls.copy())
        return batch

    train(step)
    print(json.dumps(usual(trips[5:-5])))


def worker() -> tuple[Way, Way]:
    """One step of ASP."""
    called, through = json.loads(run_here("--worker"))
    return tuple(called), tuple(through)


def coordinator() -> tuple[Way, Way]:
    """One push: the process that lets the policy decide is the coordinator."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.joinpath("sitecustomize.py").write_text("import _recorder\n_recorder.record_this_process()\n")
        path = os.pathsep.join((name, str(Path(__file__).parent), str(Path(package()).parent)))
        run_here("--plain-worker", **{"PYTHONPATH": path, RECORD: name, f"{RECORD}_PACKAGE": package()})
        return usual(turn for calls in read_processes(folder) for turn in turns(calls, "policies/asp.py"))


def compare() -> tuple[Way, Way]:
    """Every module that takes part, on whichever way."""
    with tempfile.TemporaryDirectory() as name:
        rooms = tuple(run_here("--compare", name).splitlines())
    return rooms, rooms


def compare_main(folder: str) -> None:
    """Prints the modules in which anything is called."""
    from polyrhythm.cli import main

    recorder = Recorder(package(), most=10**7)
    recorder.start()
    page = str(Path(folder, "page.html"))
    sys.argv = ["polyrhythm", "compare", "uniform", "--policies", "bsp", "--report", page]
    with contextlib.suppress(SystemExit):
        main()
    recorder.stop()
    print("\n".join(sorted(set(ways(recorder.calls)[0]))), file=sys.stderr)


def run_here(*arguments: str, **environment: str) -> str:
    """Run this script with other arguments; what it prints."""
    made = subprocess.run(
        [sys.executable, __file__, *arguments],
        env=os.environ | environment,
        check=True,
        capture_output=True,
        text=True,
    )
    return made.stderr if arguments[0] == "--compare" else made.stdout


TRIPS: dict[str, Callable[[], tuple[Way, Way]]] = {
    "simulator": simulator,
    "worker": worker,
    "coordinator": coordinator,
    "compare": compare,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--show", choices=TRIPS)
    parser.add_argument("--returns", action="store_true", help="show every return too")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--plain-worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--compare", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        worker_main()
    elif arguments.plain_worker:
        train(lambda make: make())
    elif arguments.compare:
        compare_main(arguments.compare)
    elif arguments.show:
        print("\n".join(TRIPS[arguments.show]()[arguments.returns]))
    else:
        Console(width=100).print(table())


def table() -> Table:
    """All trips."""
    shown = Table("trip", "rooms / moves / returns", "at 29fff6e", "moves and turns with each return")
    for name, trip in TRIPS.items():
        called, through = trip()
        moves = f"{len(set(called))} / {len(called) - 1} / {came_back(called)}"
        turns_back = f"{len(through) - 1} / {turned_back(through)}"
        single = name == "compare"
        shown.add_row(name, str(len(set(called))) if single else moves, BEFORE[name], "" if single else turns_back)
    return shown


if __name__ == "__main__":
    main()
