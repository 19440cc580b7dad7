"""Data sets in memory, who reads which samples, and in which order."""
