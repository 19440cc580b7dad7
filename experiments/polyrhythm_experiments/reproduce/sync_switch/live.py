"""What a switch costs in the running job, measured on real processes of this host."""

import os
from dataclasses import dataclass
from pathlib import Path

from polyrhythm.core import Left, Report, Trace
from polyrhythm.emulation.local import LocalRun, run_local
from polyrhythm.emulation.pace import Emulation
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.coordinator.recorder import phase_file
from polyrhythm.telemetry.folders import temporary_folder
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.tasks import build_task

STEP_S = 0.05
"""What each step is held up by, so that the cores are not the bottleneck."""


@dataclass(frozen=True)
class LiveSwitch:
    """Seconds of one job.

    Args:
        workers: processes.
        switch_s: from the last report under BSP to the moment at which ASP starts everyone.
        duration_s: of all training.
        start_s: from the call to the first step, processes and data included.
        load: processes of the host that ran or waited for a core, in the minute before.
    """

    workers: int
    switch_s: float
    duration_s: float
    start_s: float
    load: float = 0.0


def measure(workers: int, epochs: int = 2) -> LiveSwitch:
    load = os.getloadavg()[0]
    config = TrainingConfig(task="digits", epochs=epochs, batch_size=16, learning_rate=0.05, momentum=0.9)
    emulations = [Emulation([STEP_S], (), ()) for _ in range(workers)]
    run = LocalRun("live switch", parse_policy("switch:bsp@0.5,asp"), config, 0, emulations, None)
    with temporary_folder() as folder:
        trace = Path(folder) / "trace.jsonl"
        result = run_local(run, build_task(config), trace)
        before, after = Trace.load(trace), Trace.load(trace.with_name(phase_file(trace.stem, 2)))
    last_s = max(event.time_s for event, _ in before.entries if isinstance(event, Report | Left))
    switch_s = after.entries[0][0].time_s - last_s
    return LiveSwitch(workers, switch_s, result.duration_s, result.wall_s - result.duration_s, load)
