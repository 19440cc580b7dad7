"""The models of the built-in tasks. Each is a function of its sizes; `seeded` makes its parameters reproducible."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional


def seeded(build: Callable[[], nn.Module], seed: int) -> nn.Module:
    """A model whose parameters depend on `seed` alone; the global random state stays as it is."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def mlp(channels: int, side: int, classes: int = 10, hidden: int = 64) -> nn.Module:
    """One hidden layer on square images."""
    return nn.Sequential(nn.Flatten(), nn.Linear(channels * side * side, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def cnn(channels: int, side: int, classes: int = 10, width: int = 8) -> nn.Module:
    """Two convolutions, each followed by a pooling that halves the image, and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(2 * width * (side // 4) ** 2, classes),
    )


class Block(nn.Module):
    """Residual block of two convolutions; its shortcut subsamples and pads with zeros, without parameters."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride = stride
        self.padding = (outputs - inputs) // 2

    def forward(self, x: Tensor) -> Tensor:
        """Images of shape (batch, inputs, side, side)."""
        out = functional.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        shortcut = x[:, :, :: self.stride, :: self.stride]
        shortcut = functional.pad(shortcut, (0, 0, 0, 0, self.padding, self.padding))
        return functional.relu(out + shortcut)


def resnet(channels: int, depth: int, classes: int = 10) -> nn.Module:
    """The residual network for small images of He et al. 2016, section 4.2, with shortcuts of type A.

    Args:
        channels: of the images; their side may be any multiple of 4.
        depth: 6k + 2 layers; 20 has 0.27 M parameters, 32 has 0.46 M.
        classes: number of outputs.

    Differs from the paper's training in that images are not shifted or mirrored at random.
    """
    blocks = (depth - 2) // 6
    layers: list[nn.Module] = [nn.Conv2d(channels, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    inputs = 16
    for width, stride in ((16, 1), (32, 2), (64, 2)):
        layers += [Block(inputs, width, stride)]
        layers += [Block(width, width, 1) for _ in range(blocks - 1)]
        inputs = width
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))
    model.apply(kaiming)
    return model


def kaiming(module: nn.Module) -> None:
    """He initialisation of a convolution."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


class LanguageModel(nn.Module):
    """Transformer that predicts each next token; sizes of SelSync, section IV-A.

    Differs from the paper in that it has no dropout, so that a gradient depends on parameters and samples alone.

    Args:
        vocabulary: number of tokens.
        context: tokens of one sample.
        width: of the embedding and of the layers.
        heads: of each attention.
        depth: number of layers.
    """

    def __init__(self, vocabulary: int, context: int = 35, width: int = 200, heads: int = 2, depth: int = 2) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        layer = nn.TransformerEncoderLayer(width, heads, width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits of shape (batch, context, vocabulary) from tokens of shape (batch, context)."""
        length = tokens.shape[1]
        x = self.tokens(tokens) + self.positions.weight[:length]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        return self.head(self.layers(x, mask=mask, is_causal=True))  # type: ignore[no-any-return]


WIDTHS = {"transformer": 200, "transformer-small": 64}
"""Of the language models of the catalogue."""


def text_model(name: str, vocabulary: int, context: int) -> Callable[[int], nn.Module]:
    """Builder, from a seed, of the language model `name`."""
    return partial(seeded, partial(LanguageModel, vocabulary, context, width=WIDTHS[name]))


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
