"""What of a phase's exchange the coordinator ends, whatever the worker does at that moment."""

from collections.abc import Callable

from polyrhythm.core import Outer
from polyrhythm.runtime.collectives.death_watch import DeathWatch
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import Cut
from polyrhythm.runtime.worker.ddp_exchange import DDPExchange


def phase_name(number: int) -> str:
    return f"phase-{number}"


class PhaseExchange:
    """The exchange of the phase at hand, which the coordinator may cut before this worker is in it.

    Args:
        name: of the group of a phase, from the phase's number.
    """

    def __init__(self, name: Callable[[int], str]) -> None:
        self.exchange: DDPExchange | None = None
        self._name = name
        self._last_cut: Cut | None = None

    def begin(self, exchange: DDPExchange, config: JobConfig) -> None:
        """A phase begins, with this exchange and the settings of the job."""
        self.exchange = exchange
        if self._last_cut is not None:
            self.cut(self._last_cut)
        exchange.state_treatment, exchange.outer = config.averaged_state, Outer(config.delta_rate)
        DeathWatch.silent_s = config.hang_after

    def cut(self, message: Cut) -> None:
        """From the thread that hears of it, while the worker may stand in a collective for ever."""
        self._last_cut = message
        if self.exchange is not None:
            self.exchange.cut(self._name(message.phase), message.reason, message.after)
