"""A small perceptron in numpy, with its gradient written out: torch's calls would take longer than their sums."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from polyrhythm.policies.rlp.network import SLOPE, Layer, ValueNetwork

Array: TypeAlias = NDArray[np.float32]
STEEP, FLAT = np.float32(1), np.float32(SLOPE)
"""Slopes of the leaky rectifier."""


class MLP:
    """Fully connected layers with leaky rectifiers between them.

    Args:
        widths: units of the inputs, of each hidden layer, and of the outputs.
        generator: of the first parameters, uniform in +-1/sqrt(inputs of their layer).

    Attributes:
        parameters: all of them; weights (outputs, inputs) and biases of the layers are views of this vector.

    Example:
        >>> mlp = MLP((2, 3, 1), torch.Generator().manual_seed(0))
        >>> mlp(np.zeros((5, 2), np.float32)).shape, len(mlp.parameters)
        ((5, 1), 13)
    """

    def __init__(self, widths: Sequence[int], generator: torch.Generator) -> None:
        self.widths = tuple(widths)
        size = sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths))
        self.parameters: Array = np.empty(size, np.float32)
        self.layers = self.split(self.parameters)
        for layer in self.layers:
            bound = layer[0].shape[1] ** -0.5
            for part in layer:
                torch.from_numpy(part).uniform_(-bound, bound, generator=generator)

    def split(self, flat: Array) -> list[tuple[Array, Array]]:
        """Weights and biases of each layer in a vector such as `parameters`."""
        parts, start = [], 0
        for inputs, outputs in pairwise(self.widths):
            middle, stop = start + inputs * outputs, start + (inputs + 1) * outputs
            parts.append((flat[start:middle].reshape(outputs, inputs), flat[middle:stop]))
            start = stop
        return parts

    def __call__(self, inputs: Array) -> Array:
        return self._forward(inputs)[-1]

    def _forward(self, inputs: Array) -> list[Array]:
        activations = [inputs]
        for weight, bias in self.layers:
            if len(activations) > 1:
                np.maximum(activations[-1], FLAT * activations[-1], out=activations[-1])
            outputs = activations[-1] @ weight.T
            outputs += bias
            activations.append(outputs)
        return activations

    def gradient(self, inputs: Array, outputs: NDArray[Any], goals: Array) -> tuple[float, Array]:
        """Of the mean of (output - goal)^2 over samples, one output of each: the loss, and its derivative.

        Args:
            inputs: one sample a row.
            outputs: which output of each sample is meant.
            goals: what it should be.
        """
        *activations, scores = self._forward(inputs)
        rows = np.arange(len(inputs))
        distance = scores[rows, outputs] - goals
        error = np.zeros_like(scores)
        error[rows, outputs] = distance * np.float32(2 / len(inputs))
        return float(distance @ distance) / len(inputs), self._backward(activations, error)

    def _backward(self, activations: list[Array], error: Array) -> Array:
        gradient = np.empty_like(self.parameters)
        for at, (weight, bias) in reversed(list(enumerate(self.split(gradient)))):
            np.matmul(error.T, activations[at], out=weight)
            np.add.reduce(error, axis=0, out=bias)
            if at > 0:
                error = error @ self.layers[at][0]
                error *= np.where(activations[at] > 0, STEEP, FLAT)
        return gradient

    def plain(self, parameters: Array | None = None) -> ValueNetwork:
        layers = self.layers if parameters is None else self.split(parameters)
        return ValueNetwork(tuple(Layer(tuple(map(tuple, w.tolist())), tuple(b.tolist())) for w, b in layers))
