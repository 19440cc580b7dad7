"""Fault scripts against jobs in memory, with the books checked; ``make chaos`` plays them against real jobs."""

from tests.chaos.scripts import FaultScript, script_of, sound
from tests.runtime.coordinator.test_coordinator import processed_once
from tests.runtime.coordinator.test_snapshots import check_snapshots
from tests.runtime.fake_job import FakeJob

IN_MEMORY = range(120)
TICKS = 150
"""Of a job in memory, about: what a share of its samples comes to."""


def events_of(script: FaultScript) -> dict[int, str]:
    """The same faults for a job in memory, where who is stopped or leaves is gone like one that is killed."""
    there, events = set(range(script.workers)), dict[int, str]()
    for number, fault in enumerate(script.faults):
        if fault.kind == "coordinator" or not sound(fault, there):  # in memory there is nobody to follow it
            continue
        tick = int(fault.at * TICKS) + number
        if fault.kind in ("switch", "save"):
            events[tick] = f"{fault.kind} {fault.policy if fault.kind == 'switch' else 0}"
        elif fault.kind == "join":
            there.add(fault.rank)
            events[tick] = f"join {fault.rank}"
        else:
            there.discard(fault.rank)
            events[tick] = f"kill {fault.rank}"
    return events


def test_jobs_in_memory_outlive_the_same_faults() -> None:
    for seed in IN_MEMORY:
        script = script_of(seed)
        job = FakeJob(script.policy, script.workers, 60, 3, 2, seed)
        job.run(events_of(script))
        processed_once(job)
        check_snapshots(job)
