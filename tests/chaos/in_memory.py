"""Play fault scripts in memory: ``python -m tests.chaos.in_memory [SCRIPTS [SEED]]``.

The real coordinator, and workers that say what a session says, in a random order; see `FakeJob`. After each job the
books are checked: every sample of every epoch was applied once or skipped and counted, every trace replays to the same
decisions, and each snapshot says what was in the parameters. Prints every script with trouble, and exits with 1 if
there was any.
"""

import logging
import sys
import time

from tests.chaos.scripts import FaultScript, ends, script_of, sound
from tests.runtime.coordinator.test_coordinator import processed_once
from tests.runtime.coordinator.test_snapshots import check_snapshots
from tests.runtime.fake_job import FakeJob

SCRIPTS, SEED = 100_000, 1
SAMPLES, BATCH, EPOCHS = 60, 3, 2
TICKS = 150
"""Of a job in memory, about: what a share of its samples comes to."""


def events_of(script: FaultScript) -> dict[int, str]:
    """The same faults for a job in memory, where who is stopped, cut off or leaves is gone like one that is killed.

    Nobody is slow there, as everyone acts in a random order, nothing is on a disk, and no coordinator follows another.
    """
    there, events, tick = set(range(script.workers)), dict[int, str](), 0
    for fault in script.faults:
        tick = tick + 1 + int(fault.close_s * TICKS) if fault.close_s else max(tick + 1, int(fault.at * TICKS))
        if not sound(fault, there):
            continue
        if ends(fault):
            there.discard(fault.rank)
            events[tick] = f"kill {fault.rank}"
        elif fault.kind == "join":
            there.add(fault.rank)
            events[tick] = f"join {fault.rank}"
        elif fault.kind in ("switch", "save"):
            events[tick] = f"{fault.kind} {fault.policy if fault.kind == 'switch' else 0}"
    return events


def play(seed: int) -> None:
    """The job of a seed; an AssertionError, or what the coordinator raises, if something is wrong with it."""
    script = script_of(seed)
    job = FakeJob(script.policy, script.workers, SAMPLES, BATCH, EPOCHS, seed, ahead=seed % 3)
    job.run(events_of(script))
    if not job.given_up:
        processed_once(job)
    check_snapshots(job)


def main(count: int, first: int) -> str | None:
    """What went wrong."""
    logging.disable(logging.WARNING)
    begun_s, wrong = time.monotonic(), 0
    for seed in range(first, first + count):
        try:
            play(seed)
        except Exception as error:
            wrong += 1
            print(f"seed {seed}: {error!r}: {script_of(seed)}", flush=True)
    print(f"{count} scripts from seed {first} on in {time.monotonic() - begun_s:.0f} s, {wrong} with trouble")
    return f"{wrong} of {count} went wrong" if wrong else None


if __name__ == "__main__":
    given = [*map(int, sys.argv[1:3]), *(SCRIPTS, SEED)[len(sys.argv[1:3]) :]]
    sys.exit(main(given[0], given[1]))
