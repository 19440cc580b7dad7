"""A busy host that does not disturb: processes of a benchmark come before all other work."""

import os


def come_first() -> bool:
    """Run this process and its children at real-time priority; whether that is allowed, which takes root."""
    try:
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    except PermissionError:
        return False
    return True
