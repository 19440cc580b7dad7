"""One training of a script: its warm-up step, which torch makes, and the session that takes over from it."""
