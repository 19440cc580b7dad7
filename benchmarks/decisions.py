"""What a policy's decision about one report takes, in rounds in which all workers report one after the other.

Of the rounds the quickest counts, in processor time of this thread: a decision is pure, so whatever else it takes is
other work's doing. Exits with 1 if a policy takes more than 20 us a report with 256 workers.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from polyrhythm.core import Alarm, Cluster, Joined, Policy, Proceed, Report, Wake
from polyrhythm.policies import parse_policy

POLICIES, WORKERS, ROUNDS = ("bsp", "asp", "ssp:3", "local:8", "k-async:4", "esync"), (32, 256), 30
STEP_S, APART_S, BARRED, MOST_US = 0.1, 1e-6, 256, 20.0


class Rounds:
    """A policy with workers that report in turn, as far as it lets them."""

    def __init__(self, policy: Policy[Any], workers: int) -> None:
        self._policy, self._clocks, self._time_s = policy, [0] * workers, 0.0
        self._going = set[int]()
        self._alarm_s: float | None = None
        self._state = policy.init(Cluster(workers))
        self._show(Joined(tuple(range(workers)), 0.0))

    def make(self) -> float:
        """One round; processor time of a report."""
        self._time_s += STEP_S
        if self._alarm_s is not None:
            self._show(Alarm(max(self._alarm_s, self._time_s)))
        workers, spent_s = sorted(self._going), 0.0
        for worker in workers:
            self._time_s += APART_S
            self._going.discard(worker)
            self._clocks[worker] += 1
            report = Report(worker, self._clocks[worker], self._time_s, 8, step_s=STEP_S, transfer_s=STEP_S / 1000)
            began_s = time.thread_time()
            decided = self._policy.decide(self._state, report)
            spent_s += time.thread_time() - began_s
            self._follow(decided)
        return spent_s / len(workers)

    def _show(self, event: Any) -> None:
        self._alarm_s = None
        self._follow(self._policy.decide(self._state, event))

    def _follow(self, decided: tuple[Any, Sequence[Any]]) -> None:
        self._state, decisions = decided
        for decision in decisions:
            if isinstance(decision, Proceed):
                self._going.update(decision.workers)
            elif isinstance(decision, Wake):
                self._alarm_s = decision.time_s


def main() -> bool:
    """Whether the bar was met."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--policies", nargs="+", default=POLICIES)
    parser.add_argument("--workers", type=int, nargs="+", default=WORKERS)
    chosen = parser.parse_args()
    table, met = Table("policy", "workers", "us a report", "bar"), True
    for spec in chosen.policies:
        for workers in chosen.workers:
            rounds = Rounds(parse_policy(spec), workers)
            took_us = 1e6 * min(rounds.make() for _ in range(ROUNDS))
            barred = workers == BARRED
            met &= took_us <= MOST_US or not barred
            table.add_row(spec, str(workers), f"{took_us:.1f}", f"<= {MOST_US:g}" if barred else "")
    Console().print(table)
    return met


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
