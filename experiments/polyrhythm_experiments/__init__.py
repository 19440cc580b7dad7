"""Experiments with Polyrhythm: the papers' results run again, and a look inside a training run."""
