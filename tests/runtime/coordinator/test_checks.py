"""Whatever one worker says, at any moment and in any kind of phase, costs that worker at most: the others finish."""

import random
from typing import Any

import pytest

from polyrhythm.errors import PolicyError, PolyrhythmError
from polyrhythm.runtime.wire import protocol as control
from tests.runtime.fake_job import FakeJob
from tests.runtime.odd_messages import KINDS, readable

POLICIES = ["bsp", "asp", "k-sync:2", "local:3", "diloco:3", "selsync:0.05", "esync", "esync:blocking=false"]
STRANGER = 9
ROUNDS = 1


class BrokenCoordinatorError(BaseException):
    """Something else than a refusal has come out of it."""


class AttackedJob(FakeJob):
    """A job in which one says something odd, and leaves."""

    def __init__(self, policy: str, seed: int, who: str) -> None:
        super().__init__(policy, 3, 40, 3, 2, seed)
        self.who, self.dice = who, random.Random(seed)

    def attack(self, message: Any) -> str:
        """What the coordinator refuses it with, if it does."""
        rank = STRANGER if self.who != "member" else min((w.rank for w in self.busy()), default=STRANGER)
        reason = ""
        if self.who == "newcomer":
            self.coordinator.job.connect(STRANGER)
        try:
            self.coordinator.receive(rank, message)
        except PolicyError as error:
            raise BrokenCoordinatorError from error
        except PolyrhythmError as error:
            reason = str(error)
        except Exception as error:
            raise BrokenCoordinatorError from error
        if rank in self.workers:
            self._kill(self.workers[rank])
        else:
            self.coordinator.lost(rank, "died")
        return reason

    def busy(self) -> list[Any]:
        return [w for w in self.workers.values() if w.alive and not w.finished]

    def _event(self, what: str, argument: str) -> None:
        kind = next(kind for kind in KINDS if kind.__name__ == argument)
        message = readable(kind, self.dice)
        if "phase" in kind.__struct_fields__ and self.dice.random() < 0.7:
            message = kind(**{name: getattr(message, name) for name in kind.__struct_fields__})
            setattr(message, "phase", self.coordinator.phase)  # noqa: B010 (not of every kind)
        self.attack(message)


@pytest.mark.parametrize("who", ["nobody", "newcomer", "member"])
@pytest.mark.parametrize("kind", [kind.__name__ for kind in KINDS])
def test_an_odd_message_costs_its_sender_only(kind: str, who: str) -> None:
    heeded = kind in {each.__name__ for each in control.OF_WORKER}
    for policy in POLICIES if heeded else POLICIES[:1]:
        dice = random.Random(f"{policy} {kind} {who}")
        for _ in range(ROUNDS):
            job = AttackedJob(policy, dice.randrange(2**32), who)
            job.run({dice.randrange(1, 120): f"say {kind}"})
            others = [w for w in job.workers.values() if w.alive]
            assert len(others) >= 2 or job.coordinator.job.trouble
            assert all(w.finished for w in others)


def test_what_is_refused_is_said() -> None:
    job = AttackedJob("bsp", 0, "nobody")
    assert job.attack(control.Stepped(0, 3, 1.0)) == "rank 9 sent Stepped after it has left the job"
    job = AttackedJob("bsp", 0, "newcomer")
    assert job.attack(control.Stepped(0, 3, 1.0)) == "rank 9 sent Stepped but makes no steps in this phase"
    job = AttackedJob("asp", 0, "newcomer")
    assert job.attack(control.Pushed(0, 3, 1.0, 0.0)) == "rank 9 sent Pushed for step 0, which it was not given"
    job = AttackedJob("asp", 0, "newcomer")
    assert job.attack(control.Heartbeat()) == "rank 9 sent Heartbeat which is not for the coordinator"
