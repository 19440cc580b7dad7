"""Polyrhythm: choose, search, learn and switch how the workers of a data-parallel PyTorch job synchronize.

Every public name is looked up when it is first used, so that ``import polyrhythm`` costs next to nothing and imports no
torch.
"""

import importlib as _importlib
import typing as _typing

if _typing.TYPE_CHECKING:
    from polyrhythm.core import Alarm as Alarm
    from polyrhythm.core import Bounds as Bounds
    from polyrhythm.core import Cancel as Cancel
    from polyrhythm.core import Cluster as Cluster
    from polyrhythm.core import Decision as Decision
    from polyrhythm.core import Decisions as Decisions
    from polyrhythm.core import Event as Event
    from polyrhythm.core import Joined as Joined
    from polyrhythm.core import Left as Left
    from polyrhythm.core import LossMeasured as LossMeasured
    from polyrhythm.core import MeasureLoss as MeasureLoss
    from polyrhythm.core import Outer as Outer
    from polyrhythm.core import Policy as Policy
    from polyrhythm.core import Proceed as Proceed
    from polyrhythm.core import Report as Report
    from polyrhythm.core import Settings as Settings
    from polyrhythm.core import Stop as Stop
    from polyrhythm.core import Stopped as Stopped
    from polyrhythm.core import Sync as Sync
    from polyrhythm.core import Trace as Trace
    from polyrhythm.core import Traits as Traits
    from polyrhythm.core import Wake as Wake
    from polyrhythm.core import replay as replay
    from polyrhythm.errors import ClusterError as ClusterError
    from polyrhythm.errors import PolyrhythmError as PolyrhythmError
    from polyrhythm.errors import UsageError as UsageError
    from polyrhythm.policies import parse_policy as parse_policy
    from polyrhythm.runtime.worker.session import Session as Session
    from polyrhythm.runtime.worker.session import session as session
    from polyrhythm.sim import Device as Device
    from polyrhythm.sim import Limits as Limits
    from polyrhythm.sim import Scenario as Scenario
    from polyrhythm.sim import TimingWorkload as TimingWorkload
    from polyrhythm.sim import compare as compare
    from polyrhythm.sim import load_scenario as load_scenario
    from polyrhythm.sim import simulate as simulate
    from polyrhythm.sim import sweep as sweep
    from polyrhythm.telemetry import RunResult as RunResult

__version__ = "0.1.0"

_WHERE = {
    "polyrhythm.core": (
        *("Bounds", "Cluster", "Policy", "Trace", "Traits", "replay"),
        *("Alarm", "Event", "Joined", "Left", "LossMeasured", "Report", "Stopped"),
        *("Cancel", "Decision", "Decisions", "Outer", "MeasureLoss", "Proceed", "Settings", "Stop", "Sync", "Wake"),
    ),
    "polyrhythm.errors": ("ClusterError", "PolyrhythmError", "UsageError"),
    "polyrhythm.policies": ("parse_policy",),
    "polyrhythm.runtime.worker.session": ("Session", "session"),
    "polyrhythm.sim": (
        *("Device", "Limits", "Scenario", "TimingWorkload"),
        *("compare", "load_scenario", "simulate", "sweep"),
    ),
    "polyrhythm.telemetry": ("RunResult",),
}
_MODULES = {name: module for module, names in _WHERE.items() for name in names}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> _typing.Any:
    if name in _MODULES:
        value = globals()[name] = getattr(_importlib.import_module(_MODULES[name]), name)
        return value
    from polyrhythm.errors import did_you_mean

    raise AttributeError(f"module 'polyrhythm' has no attribute {name!r}: {did_you_mean(name, _MODULES)}")


def __dir__() -> list[str]:
    dunders = (name for name in globals() if name.startswith("__"))
    return sorted({*dunders, *_MODULES})
