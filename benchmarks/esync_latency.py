"""ESync on real workers whose coordinator is far away: throughput by latency, with and without waiting for answers.

Four hosts are network namespaces: the coordinator with a worker that is 20 times as slow, two hosts with a fast worker
each, and a relay between these two and the coordinator, which hands everything on 0, 20 or 50 ms later each way.
Replicas meet without the relay. Needs root and iproute2. Exits with 1 if the mode that does not wait keeps
less than 90 % of its throughput without latency.
"""

import sys
from pathlib import Path

from _hosts import network, python, result, started
from _paced_worker import BATCH
from rich.console import Console
from rich.table import Table

DELAYS_S = (0.0, 0.02, 0.05)
MODES = ("esync", "esync:blocking=false")
STEPS, STEP_S, SLOWDOWN = 500, 0.03, 20
LEAST_SHARE = 0.9
PORT = 29400
FOLDER = Path(__file__).parent


def samples_per_s(policy: str, delay_s: float) -> float:
    """Of one job."""
    with network(4, rate_mbit=1000) as hosts:
        far = hosts[-1]
        started(python(far, str(FOLDER / "_late_relay.py"), str(PORT), hosts[0].address, str(PORT), str(delay_s)))
        script = (str(FOLDER / "_paced_worker.py"), str(STEPS), str(STEP_S), str(SLOWDOWN))
        flags = ("--nnodes", "3", "--rdzv-id", "far", "--nproc-per-node", "1", "--policy", policy)
        run = ("-m", "polyrhythm", "run", "--node-rank")
        addresses = [hosts[0].address, far.address, far.address]
        jobs = [
            python(host, *run, str(number), "--rdzv-endpoint", f"{address}:{PORT}", *flags, *script)
            for number, (host, address) in enumerate(zip(hosts[:-1], addresses, strict=True))
        ]
        seconds: float = result(jobs)
    return STEPS * BATCH / seconds


def main() -> int:
    """Measure, print and judge."""
    table = Table("policy", *(f"{1000 * delay_s:g} ms" for delay_s in DELAYS_S), "bar")
    passed = True
    for policy in MODES:
        rates = [samples_per_s(policy, delay_s) for delay_s in DELAYS_S]
        cells = [f"{rate:.0f} samples/s, {100 * rate / rates[0]:.0f} %" for rate in rates]
        judged = policy != MODES[0]
        passed &= not judged or min(rates) >= LEAST_SHARE * rates[0]
        table.add_row(policy, *cells, f">= {100 * LEAST_SHARE:g} %" if judged else "")
    Console(width=130).print(table)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
