"""Search for the setting at which a job keeps its accuracy at the least cost, and what such a search costs."""
