"""Fault scripts against jobs in memory, with the books checked; ``make chaos`` plays them against real jobs."""

from tests.chaos.in_memory import play
from tests.chaos.scripts import KINDS, script_of

IN_MEMORY = range(120)
FOUND = (52106, 51742, 100096, 108645, 110342, 120712, 226594, 250928)
"""Seeds that have found something: under `ssp` a checkpoint and a death in one moment, after which nobody went on; a
state that its sender's group did not carry, twice, which the harness expected to have arrived; a job that went on from
a newcomer's parameters as all others were gone; a rank that came back and was taken for one that has the state, and
for one that has left the epoch early; a state that its sender had given to others that had not yet gone on, and a
checkpoint after samples that nobody made, which the harness did not expect.
"""


def test_jobs_in_memory_outlive_the_faults() -> None:
    for seed in (*FOUND, *IN_MEMORY):
        play(seed)


def test_scripts_have_faults_of_every_kind_also_closely_after_another() -> None:
    faults = [fault for seed in IN_MEMORY for fault in script_of(seed).faults]
    assert {fault.kind for fault in faults} == {*KINDS}
    assert {fault.kind for fault in faults if fault.close_s} == {*KINDS}
