"""How a worker is there for its coordinator, and for the next one."""
