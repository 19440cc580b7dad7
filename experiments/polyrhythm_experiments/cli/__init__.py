"""The commands that `polyrhythm` shows when this package is installed."""
