"""Gradients of an episode's small models in numpy, several at once: torch's calls would take longer than their sums."""

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from polyrhythm.rl.mlp import Array
from polyrhythm.training.averaging import Buffers
from polyrhythm.training.data.task import Quality, Task
from polyrhythm.training.flat import FlatModel, Segment
from polyrhythm.training.gradient import Gradient, GradientRequest, StackedGradients

ArrayLayers: TypeAlias = list[tuple[Array, Array]]
"""Weights (rows, outputs, inputs) and biases (rows, outputs) of each layer."""


class ArrayGradients(StackedGradients):
    """`StackedGradients` whose gradients are computed in numpy, and squared norms are left out unless `norms` is set.

    The same to float tolerance: products are summed in another order.
    """

    def __init__(self, task: Task, model: FlatModel) -> None:
        super().__init__(task, model)
        train = task.train
        self.inputs: Array = task.prepared(train.inputs).reshape(len(train), -1).numpy()
        self.targets: NDArray[np.int64] = train.targets.numpy()
        self.parameters: Array = self.stack.numpy()
        self.test: Tensor = task.prepared(task.test.inputs).reshape(len(task.test), -1)
        self.test_targets: Tensor = task.test.targets
        self.test_labels: NDArray[np.int64] = self.test_targets.numpy()
        # Views of what was evaluated last, which is mostly what is evaluated next.
        self._evaluated: tuple[Tensor | None, list[tuple[Tensor, Tensor]]] = (None, [])
        self._layers: dict[int, ArrayLayers] = {}
        self._starts: dict[int, NDArray[Any]] = {}

    @np.errstate(all="ignore")  # of a job that diverges, whose loss says so
    def compute(self, requests: Sequence[GradientRequest]) -> list[Gradient]:
        """The gradient of each request; all have equally many samples, and at most `rows` come at once."""
        rows = len(requests)
        for row, request in enumerate(requests):
            self.parameters[row] = request.parameters.numpy()
        layers = self._layers.get(rows) or self._layers.setdefault(rows, layers_of(self.parameters[:rows], self.layers))
        indices = np.concatenate([request.indices.numpy() for request in requests])
        activations = forward(layers, self.inputs[indices].reshape(rows, -1, self.inputs.shape[1]))
        losses, error = self._cross_entropy(activations.pop(), self.targets[indices])
        gradients = np.empty_like(self.parameters[:rows])
        backward(layers, activations, error, layers_of(gradients, self.layers))
        norms = np.einsum("rp,rp->r", gradients, gradients).tolist() if self.norms else [None] * rows
        vectors = torch.from_numpy(gradients).unbind()
        return [Gradient(*row) for row in zip(vectors, losses.tolist(), norms, strict=True)]

    @torch.no_grad()
    @np.errstate(all="ignore")
    def evaluate(self, parameters: Tensor, buffers: Buffers) -> Quality:
        if parameters is not self._evaluated[0]:
            self._evaluated = parameters, [(w.view(parameters).t(), b.view(parameters)) for w, b in self.layers]
        outputs = self.test
        for weight, bias in self._evaluated[1]:
            outputs = torch.addmm(bias, outputs if outputs is self.test else outputs.relu_(), weight)
        correct = int(np.count_nonzero(outputs.numpy().argmax(1) == self.test_labels))  # NumPy 2.4 counts in int64
        loss = functional.cross_entropy(outputs, self.test_targets).item()
        return Quality(correct / len(self.test), loss)

    def _cross_entropy(self, logits: Array, targets: NDArray[np.int64]) -> tuple[Array, Array]:
        """Mean loss of each row, and its derivative by the logits, which are overwritten with it."""
        rows, batch, classes = logits.shape
        starts = self._starts.get(len(targets))
        if starts is None:
            starts = self._starts[len(targets)] = np.arange(len(targets)) * classes
        chosen = starts + targets
        logits -= np.maximum.reduce(logits, axis=2, keepdims=True)
        picked = logits.ravel()[chosen]
        error = np.exp(logits, out=logits)
        sums = np.add.reduce(error, axis=2, keepdims=True)
        losses = np.add.reduce((np.log(sums).ravel() - picked).reshape(rows, batch), axis=1) / np.float32(batch)
        error /= sums
        error.ravel()[chosen] -= np.float32(1)
        error /= np.float32(batch)
        return losses, error


def layers_of(stack: Array, layers: Sequence[tuple[Segment, Segment]]) -> ArrayLayers:
    """Weights and biases of each layer in every row of a stack of flat vectors, as views."""
    rows, stride = len(stack), stack.strides[0]
    views = []
    for weight, bias in layers:
        outputs, inputs = weight.shape
        shape, strides = (rows, outputs, inputs), (stride, 4 * inputs, 4)
        weights: Array = np.ndarray(shape, np.float32, stack.data, 4 * weight.start, strides)
        views.append((weights, stack[:, bias.start : bias.stop]))
    return views


def forward(layers: ArrayLayers, inputs: Array) -> list[Array]:
    """Activations before each layer and, last, the outputs; each of shape (rows, batch, width)."""
    activations = [inputs]
    for weight, bias in layers:
        if len(activations) > 1:
            np.maximum(activations[-1], 0, out=activations[-1])
        outputs = np.matmul(activations[-1], weight.transpose(0, 2, 1))
        outputs += bias[:, None]
        activations.append(outputs)
    return activations


def backward(layers: ArrayLayers, activations: list[Array], error: Array, gradients: ArrayLayers) -> None:
    for at in range(len(layers) - 1, -1, -1):
        weight, bias = gradients[at]
        np.matmul(error.transpose(0, 2, 1), activations[at], out=weight)
        np.add.reduce(error, axis=1, out=bias)
        if at > 0:
            error = np.matmul(error, layers[at][0])
            error *= activations[at] > 0
