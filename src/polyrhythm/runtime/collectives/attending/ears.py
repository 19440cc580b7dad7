"""What a script does to gradients between its backward pass and its step, as far as torch tells."""

from polyrhythm.runtime.collectives.attending.clipping import CLIPS
from polyrhythm.runtime.collectives.attending.scaling import EAR


def listen() -> None:
    """Once a process."""
    EAR.listen()
    CLIPS.listen()
