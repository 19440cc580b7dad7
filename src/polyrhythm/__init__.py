"""Polyrhythm: choose, search, learn and switch how the workers of a data-parallel PyTorch job synchronize."""

__version__ = "0.1.0"
