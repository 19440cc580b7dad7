"""What the tasks on images share: their models by name."""

from collections.abc import Callable
from functools import partial

from torch import nn

from polyrhythm.training.models import cnn, mlp, resnet, seeded


def vision_model(name: str, channels: int, side: int) -> Callable[[int], nn.Module]:
    """Builder, from a seed, of the model `name` for square images with ten classes."""
    builders: dict[str, Callable[[], nn.Module]] = {
        "mlp": partial(mlp, channels, side),
        "cnn": partial(cnn, channels, side),
        "wide": partial(mlp, channels, side, hidden=4096),  # a large message that takes little computing
        "resnet20": partial(resnet, channels, depth=20),
        "resnet32": partial(resnet, channels, depth=32),
    }
    return partial(seeded, builders[name])
