"""Play fault scripts against real jobs: ``python -m tests.chaos.play [SECONDS [SEED]]``, as ``make chaos`` does.

Every sample of every epoch has parameters of its own, zero until a step with it is in the model, and each time that it
is made one of them at random is moved. At the end the workers that are left must have the same parameters, with one
moved for every sample but those that were skipped and counted. Prints one line a script, and exits with 1 if a job does
not finish, or a sample is lost or made twice.
"""

import os
import signal
import socket
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import polyrhythm
from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.wire.control_protocol import Status
from polyrhythm.runtime.wire.job_config import coordinator_address
from polyrhythm.testing.coordinates import SampleAttempts, train_attempts
from polyrhythm.testing.processes import ProcessOutcome, Workers, workers
from tests.chaos.scripts import Fault, FaultScript, ends, script_of, sound
from tests.runtime.coordinates import await_samples, await_status, hold
from tests.runtime.jobs import Job, job, take_part

EPOCHS, SAMPLES, BATCH, COMPUTE_S = 2, 720, 2, 0.003
SLOW_S = 10 * COMPUTE_S
LIMIT_S = 300.0
"""Nobody waits so long on a busy machine, either, but for ever."""

SLOTS = 32
"""Parameters of a sample: that two attempts move the same one has this part of a chance."""

CUT, SLOW = signal.SIGRTMIN, signal.SIGRTMIN + 1
"""What a worker of these jobs does to itself when asked."""

SIGNALS = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "leave": signal.SIGTERM, "cut": CUT, "slow": SLOW}


def train(rank: int, name: str, until: str = "") -> tuple[Tensor, Status]:
    """Train to the end; the parameters, and the coordinator's figures. See `hold` for `until`."""
    slower_s = [0.0]
    signal.signal(CUT, lambda *_: cut_off(name))
    signal.signal(SLOW, lambda *_: slower_s.append(SLOW_S - slower_s[-1]))
    model = SampleAttempts(EPOCHS, SAMPLES, SLOTS, BATCH)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with polyrhythm.session(model, optimizer) as session:

        def after_step() -> None:
            time.sleep(slower_s[-1])
            hold(session, EPOCHS, SAMPLES, until)

        train_attempts(session, model, optimizer, BATCH, COMPUTE_S, after_step=after_step)
        state = steer.status(steer.at(name))
    return model.weight.detach().clone(), state


def cut_off(name: str) -> None:
    """All connections of this process to the coordinator of a job break."""
    there = coordinator_address(name)
    for entry in [*Path("/proc/self/fd").iterdir()]:
        with suppress(OSError), socket.socket(fileno=os.dup(int(entry.name))) as connection:
            peer = connection.getpeername()
            if isinstance(peer, bytes) and peer.lstrip(b"\0").decode() in there:
                connection.shutdown(socket.SHUT_RDWR)


def come_back(_: int, rank: int, *arguments: Any) -> Any:
    """Body of a worker that joins under a rank that is free."""
    return take_part(rank, *arguments)


Place = tuple[Workers, int]
"""Where a rank's process is."""


class Play:
    """One script against one real job.

    Args:
        script: what goes wrong.
        folder: for checkpoints and traces.
    """

    def __init__(self, script: FaultScript, folder: str) -> None:
        self._script, self._disk = script, Path(folder, "disk")
        self._name = f"chaos-{os.getpid()}-{script.seed}"
        self._there: dict[int, Place] = {}
        self._cut: dict[int, Place] = {}
        self._stack = ExitStack()

    def run(self) -> str:
        """What is wrong at the end; empty if nothing is."""
        script, disk = self._script, str(self._disk)
        settings = {"hang_after": 3.0, "heartbeat_s": 0.5, "checkpoint": disk, "every": "2s", "trace": disk}
        settings |= {"max_coordinator_restarts": 9, "snapshot": "0.5s"}
        with (
            self._stack,
            job(train, script.workers, self._name, name=self._name, policy=script.policy, **settings) as running,
        ):
            self._there = {rank: (running.ranks, rank) for rank in range(script.workers)}
            for fault in script.faults:
                if not await_samples(running, fault.at * EPOCHS * SAMPLES, LIMIT_S):
                    break
                time.sleep(fault.close_s)
                if sound(fault, {*self._there}):
                    self._do(fault, running)
            stayed = [self._outcome(*place) for place in self._there.values()]
            if all(group is not running.ranks for group, _ in self._there.values()) and all(map(is_lost, stayed)):
                return ""
            return trouble(stayed, script) or self._trouble_of_cut(stayed)

    def _do(self, fault: Fault, running: Job) -> None:
        match fault.kind:
            case "kill" | "stop" | "leave" | "cut" | "slow":
                self._signal(fault)
            case "join" if fault.rank not in self._cut:
                self._join(fault.rank, running)
            case "switch":
                steer.switch(steer.at(self._name), fault.policy)
            case "disk":
                self._change_disk()
            case "coordinator":
                with suppress(ProcessLookupError):  # the job has just ended
                    os.kill(running.serving, signal.SIGKILL)

    def _signal(self, fault: Fault) -> None:
        group, place = self._there[fault.rank]
        if ends(fault):
            del self._there[fault.rank]
        if fault.kind == "cut":
            self._cut[fault.rank] = group, place
        group.kill(place, SIGNALS[fault.kind])

    def _change_disk(self) -> None:
        """The folder is out of reach, or there again with what it had."""
        away = self._disk.with_suffix(".away")
        if away.exists():
            self._disk.unlink()
            away.rename(self._disk)
        else:
            self._disk.mkdir(exist_ok=True)
            self._disk.rename(away)
            self._disk.touch()

    def _join(self, rank: int, running: Job) -> None:
        if not self._await_member(rank, False):  # one that was stopped is a member until it is noticed
            return
        address = running.settings, running.coordinator.processes[0].pid, train, (self._name,)
        joining = self._stack.enter_context(workers(come_back, 1, rank, *address))
        if self._await_member(rank, True):  # otherwise the job has ended before
            self._there[rank] = joining, 0

    def _await_member(self, rank: int, there: bool) -> bool:
        """Until a rank is a member of the job, or none any more; False if the job has ended before."""
        otherwise = f"rank {rank} is {'no' if there else 'a'} member"
        return await_status(self._name, lambda state: (rank in state.members) == there, otherwise, LIMIT_S)

    def _outcome(self, group: Workers, place: int) -> ProcessOutcome:
        others = [other for other in range(len(group.processes)) if other != place]
        return group.join(LIMIT_S, leave=others)[0]

    def _trouble_of_cut(self, stayed: list[ProcessOutcome]) -> str:
        """Who was cut off has found back and has the same, or has ended by itself with a line."""
        for outcome in [self._outcome(*place) for place in self._cut.values()]:
            last = outcome.traceback.strip().split("\n")[-1]
            if outcome.ok and not torch.equal(outcome.value[0], stayed[0].value[0]):
                return "who was cut off differs"
            if not outcome.ok and "polyrhythm.errors" not in last:
                return f"who was cut off has ended with {outcome.exit_code}: {last}"
        return ""


def is_lost(outcome: ProcessOutcome) -> bool:
    """Whether a newcomer has ended as all who could have given it the parameters were gone."""
    return not outcome.ok and "all workers that had the job's parameters are gone" in outcome.traceback


def trouble(outcomes: list[ProcessOutcome], script: FaultScript) -> str:
    """What is wrong with what the workers have that are left; empty if nothing is."""
    failed = [outcome for outcome in outcomes if not outcome.ok]
    if failed:
        return (failed[0].traceback or "a worker died").strip().split("\n")[-1]
    weights, state = outcomes[0].value
    if any(not torch.equal(weights, outcome.value[0]) for outcome in outcomes[1:]):
        return "the workers that are left differ"
    made, total = (weights != 0).sum(-1), EPOCHS * SAMPLES
    missing, again = int((made == 0).sum()), int((made > 1).sum())
    if again:
        return f"{again} samples were made more than once"
    if state.samples + state.skipped != total or missing != state.skipped or missing >= script.workers * EPOCHS:
        return f"{state.samples} samples and {state.skipped} skipped of {total}, {missing} in no parameter"
    return ""


def play(seed: int) -> str:
    """The trouble with one seed."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return Play(script_of(seed), folder).run()
        except (AssertionError, PolyrhythmError) as error:
            return str(error).split("\n", maxsplit=1)[0] or repr(error)


def main(seconds: float, seed: int) -> str | None:
    """Play one seed after the other for so long; what went wrong."""
    begun, first, wrong = time.monotonic(), seed, 0
    while time.monotonic() < begun + seconds:
        since = time.monotonic()
        found = play(seed)
        wrong += bool(found)
        took = f"{time.monotonic() - since:.1f} s"
        print(f"seed {seed}: {took}, {f'{found}: {script_of(seed)}' if found else 'nothing wrong'}", flush=True)
        seed += 1
    print(f"{seed - first} scripts from seed {first} on, {wrong} with trouble")
    return f"{wrong} of {seed - first} went wrong" if wrong else None


if __name__ == "__main__":
    given = [float(argument) for argument in sys.argv[1:3]]
    sys.exit(main(given[0] if given else 3600.0, int(given[1]) if len(given) > 1 else 1))
