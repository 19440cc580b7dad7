"""A small perceptron on one flat vector, with its gradient written out: autograd takes several times longer."""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

from polyrhythm.policies.rlp_file import SLOPE, Layer, Network

leaky_relu_backward = torch.ops.aten.leaky_relu_backward.default


class MLP:
    """Fully connected layers with leaky rectifiers between them.

    Args:
        widths: units of the inputs, of each hidden layer, and of the outputs.
        generator: of the first parameters, uniform in +-1/sqrt(inputs of their layer).

    Attributes:
        parameters: all of them; weights (outputs, inputs) and biases of the layers are views of this vector.

    Example:
        >>> mlp = MLP((2, 3, 1), torch.Generator().manual_seed(0))
        >>> mlp(torch.zeros(5, 2)).shape, len(mlp.parameters)
        (torch.Size([5, 1]), 13)
    """

    def __init__(self, widths: Sequence[int], generator: torch.Generator) -> None:
        self.widths = tuple(widths)
        self.parameters = torch.empty(sum((inputs + 1) * outputs for inputs, outputs in pairwise(widths)))
        self.layers = self.split(self.parameters)
        for weight, bias in self.layers:
            bound = weight.shape[1] ** -0.5
            weight.uniform_(-bound, bound, generator=generator)
            bias.uniform_(-bound, bound, generator=generator)

    def split(self, flat: Tensor) -> list[tuple[Tensor, Tensor]]:
        """Weights and biases of each layer in a vector such as `parameters`."""
        parts, start = [], 0
        for inputs, outputs in pairwise(self.widths):
            middle, stop = start + inputs * outputs, start + (inputs + 1) * outputs
            parts.append((flat[start:middle].view(outputs, inputs), flat[middle:stop]))
            start = stop
        return parts

    def __call__(self, inputs: Tensor) -> Tensor:
        """Outputs of one sample, or of many, one a row."""
        for weight, bias in self.layers[:-1]:
            inputs = functional.leaky_relu(functional.linear(inputs, weight, bias), SLOPE)
        return functional.linear(inputs, *self.layers[-1])

    def gradient(self, inputs: Tensor, outputs: Tensor, goals: Tensor) -> tuple[float, Tensor]:
        """Of the mean of (output - goal)^2 over samples, one output of each: the loss, and its derivative.

        Args:
            inputs: one sample a row.
            outputs: which output of each sample is meant.
            goals: what it should be.
        """
        activations = [inputs]
        for weight, bias in self.layers[:-1]:
            activations.append(functional.leaky_relu(functional.linear(activations[-1], weight, bias), SLOPE))
        scores, columns = functional.linear(activations[-1], *self.layers[-1]), outputs.unsqueeze(1)
        distance = scores.gather(1, columns).sub_(goals.unsqueeze(1))
        error = torch.zeros_like(scores).scatter_(1, columns, distance * (2 / len(inputs)))
        return distance.square().mean().item(), self._backward(activations, error)

    def _backward(self, activations: list[Tensor], error: Tensor) -> Tensor:
        gradient = torch.empty_like(self.parameters)
        for at, (weight, bias) in reversed(list(enumerate(self.split(gradient)))):
            torch.mm(error.t(), activations[at], out=weight)
            torch.sum(error, 0, out=bias)
            if at > 0:
                error = leaky_relu_backward(error @ self.layers[at][0], activations[at], SLOPE, True)
        return gradient

    def plain(self, parameters: Tensor | None = None) -> Network:
        """The same function, or that of other parameters, in plain Python."""
        layers = self.layers if parameters is None else self.split(parameters)
        return Network(tuple(Layer(tuple(map(tuple, w.tolist())), tuple(b.tolist())) for w, b in layers))
