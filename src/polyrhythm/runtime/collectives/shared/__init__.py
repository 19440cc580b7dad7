"""Sums and broadcasts of members on one host: in memory that they share (`buffers`), or where their vectors are."""
