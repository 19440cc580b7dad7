"""What is measured while a job runs, and what a run came to."""

from polyrhythm.telemetry.gauge import Figures as Figures
from polyrhythm.telemetry.gauge import Gauge as Gauge
from polyrhythm.telemetry.gauge import Mark as Mark
from polyrhythm.telemetry.links import LinkBytes as LinkBytes
from polyrhythm.telemetry.meter import Meter as Meter
from polyrhythm.telemetry.result import EvalPoint as EvalPoint
from polyrhythm.telemetry.result import RunResult as RunResult
from polyrhythm.telemetry.stragglers import Lateness as Lateness
from polyrhythm.telemetry.stragglers import Stragglers as Stragglers
