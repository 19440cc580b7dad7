"""Exit codes of the commands."""

USAGE = 2
"""For what the user can mend before anything runs."""

FAILED = 1
"""When a run diverged or failed."""

INTERRUPTED = 130
"""After Ctrl-C, as drivers have it."""
