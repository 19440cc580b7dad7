"""Gradients of mini-batches at given parameters, as flat vectors.

A copy of the parameters is fixed once it is read, so gradients of steps that are still in flight may be computed
together with the one that is due. `StackedGradients` does so for stacks of linear layers, where one batched matrix
product replaces many small ones; `PlainGradients` goes through autograd, one by one; `ThreadedGradients` does the same
on several cores.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from itertools import zip_longest
from typing import NamedTuple, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from polyrhythm.training.averaging import Buffers
from polyrhythm.training.data.task import Quality, Task, cross_entropy
from polyrhythm.training.flat import FlatModel, Segment

STACK_BYTES = 3 << 19
"""Parameters that one stack holds: beyond that they leave the cache and stacking no longer pays."""
STACK_ROWS = 32
"""Most gradients in one stack."""
THREAD_ROWS = 4
"""Gradients that a thread computes at once: it is woken up once for all of them."""

threshold_backward = torch.ops.aten.threshold_backward.default
"""Derivative of the rectifier; a product with a mask takes three times as long."""


class Gradient(NamedTuple):
    """A flat gradient, the mean loss of its mini-batch, and its squared L2 norm if it was asked for."""

    vector: Tensor
    loss: float
    sq_norm: float | None


@dataclass(frozen=True, slots=True)
class GradientRequest:
    """Parameters to compute a gradient at, indices of training samples, and buffers, which the forward pass updates."""

    parameters: Tensor
    indices: Tensor
    buffers: Buffers


class Gradients(Protocol):
    """Computes gradients.

    Attributes:
        rows: how many requests, with equally many samples each, are best made at once.
        norms: whether squared norms are wanted, too.
    """

    rows: int
    norms: bool

    def compute(self, requests: Sequence[GradientRequest]) -> list[Gradient]:
        """The gradient of each request."""

    def evaluate(self, parameters: Tensor, buffers: Buffers) -> Quality:
        """Quality of these parameters on the test split."""


class PlainGradients:
    """Any model, by autograd, one request after the other."""

    rows = 1

    def __init__(self, task: Task, model: FlatModel) -> None:
        self.task = task
        self.model = model
        self.norms = True

    def compute(self, requests: Sequence[GradientRequest]) -> list[Gradient]:
        """The gradient of each request; its buffers advance."""
        return [self._one(request) for request in requests]

    def evaluate(self, parameters: Tensor, buffers: Buffers) -> Quality:
        """Quality on the test split."""
        self.model.load(parameters, buffers.vector, buffers.counters)
        return self.task.evaluate(self.model.module)

    def _one(self, request: GradientRequest) -> Gradient:
        self.model.load(request.parameters, request.buffers.vector, request.buffers.counters)
        inputs, targets = self.task.batch(request.indices)
        loss = self.task.loss(self.model.module(inputs), targets)
        parts = torch.autograd.grad(loss, self.model.tensors, materialize_grads=True)
        vector = torch.cat([part.reshape(-1) for part in parts])
        self.model.save_buffers(request.buffers.vector, request.buffers.counters)
        return Gradient(vector, loss.item(), torch.dot(vector, vector).item() if self.norms else None)


class ThreadedGradients(PlainGradients):
    """The same bits as `PlainGradients` under one thread of torch, several requests at once, each on a core of its own.

    For models without buffers, which advance with a step and not ahead of it, and without random numbers, whose order
    would be that of the threads.

    Args:
        task: data and loss.
        model: of the thread that calls; the others have copies.
        threads: how many compute at once.
    """

    def __init__(self, task: Task, model: FlatModel, threads: int) -> None:
        super().__init__(task, model)
        self.rows = threads * THREAD_ROWS
        self._others = [PlainGradients(task, FlatModel(deepcopy(model.module))) for _ in range(threads - 1)]
        self._pool = ThreadPoolExecutor(threads - 1, "polyrhythm-gradients")

    @staticmethod
    def supports(task: Task, model: FlatModel) -> bool:
        """Whether a gradient depends on parameters and samples alone; the model is on the CPU."""
        if model.parameters.device.type != "cpu" or model.counters or model.buffers.numel():
            return False
        before = torch.get_rng_state()
        inputs, targets = task.batch(torch.zeros(1, dtype=torch.int64))
        task.loss(model.module(inputs), targets)
        after = torch.get_rng_state()
        torch.set_rng_state(before)
        return torch.equal(before, after)

    def compute(self, requests: Sequence[GradientRequest]) -> list[Gradient]:
        """The gradient of each request; at most `rows` come at once."""
        threads, results = 1 + len(self._others), list[Gradient]()
        parts = [requests[thread::threads] for thread in range(threads)]
        started = [self._pool.submit(other.compute, part) for other, part in zip(self._others, parts[1:], strict=True)]
        made = [PlainGradients.compute(self, parts[0]), *[future.result() for future in started]]
        for row in zip_longest(*made):
            results += [gradient for gradient in row if gradient is not None]
        return results


class StackedGradients:
    """A stack of linear layers with ReLU between them under cross-entropy, several requests at once.

    With K parameter vectors and K mini-batches of B samples, layer l computes ``a_l = relu(a_(l-1) W_l^T + b_l)`` for
    all K with one batched product; the backward pass is written out. Equal to `PlainGradients` to float tolerance.
    """

    def __init__(self, task: Task, model: FlatModel) -> None:
        self.task = task
        segments = model.layout.segments
        self.layers = list(zip(segments[::2], segments[1::2], strict=True))
        self.rows = max(1, min(STACK_ROWS, STACK_BYTES // (4 * model.layout.size)))
        self.norms = True
        self.stack = torch.empty(self.rows, model.layout.size)
        # Views of the first rows of the stack; making them anew costs as much as a small product.
        self._views: dict[int, list[tuple[Tensor, Tensor]]] = {}

    @staticmethod
    def supports(task: Task, model: FlatModel) -> bool:
        """Whether a model is such a stack, on the CPU, with all parameters trainable and a bias in each layer."""
        layers = list(model.module.children()) if type(model.module) is nn.Sequential else []
        if layers and type(layers[0]) is nn.Flatten:
            layers = layers[1:]
        alternate = [type(layer) for layer in layers] == ([nn.Linear, nn.ReLU] * (len(layers) // 2) + [nn.Linear])
        biased = all(layer.bias is not None for layer in layers if isinstance(layer, nn.Linear))
        complete = len(model.tensors) == len(list(model.module.parameters())) == len(layers) + 1
        return (
            alternate and biased and complete and task.loss is cross_entropy and model.parameters.device.type == "cpu"
        )

    @torch.no_grad()
    def compute(self, requests: Sequence[GradientRequest]) -> list[Gradient]:
        """The gradient of each request; all have equally many samples, and at most `rows` come at once."""
        rows = len(requests)
        stack = torch.stack([request.parameters for request in requests], out=self.stack[:rows])
        layers = self._views[rows] = self._views.get(rows) or views_of(stack, self.layers)
        inputs, targets = self.task.batch(torch.cat([request.indices for request in requests]))
        activations = forward(layers, inputs.view(rows, -1, self.layers[0][0].shape[1]))
        losses, error = cross_entropy_rows(activations.pop(), targets.view(rows, -1, 1))
        gradients = torch.empty_like(stack)
        backward(layers, activations, error, views_of(gradients, self.layers))
        norms = torch.linalg.vector_norm(gradients, dim=1).square_().tolist() if self.norms else [None] * rows
        return [Gradient(*row) for row in zip(gradients.unbind(), losses.tolist(), norms, strict=True)]

    @torch.no_grad()
    def evaluate(self, parameters: Tensor, buffers: Buffers) -> Quality:
        """Quality on the test split."""
        layers = views_of(parameters.unsqueeze(0), self.layers)
        return self.task.measure(lambda inputs: forward(layers, inputs.reshape(1, len(inputs), -1)).pop()[0])


TensorLayers: TypeAlias = Sequence[tuple[Tensor, Tensor]]
"""Weights (rows, outputs, inputs) and biases (rows, 1, outputs) of each layer."""


def forward(layers: TensorLayers, inputs: Tensor) -> list[Tensor]:
    """Activations before each layer and, last, the outputs; each of shape (rows, batch, width)."""
    activations = [inputs]
    for weight, bias in layers:
        if len(activations) > 1:
            activations[-1].relu_()
        activations.append(torch.baddbmm(bias, activations[-1], weight.transpose(1, 2)))
    return activations


def backward(layers: TensorLayers, activations: list[Tensor], error: Tensor, gradients: TensorLayers) -> None:
    """Write the gradient of every layer, from the error at the outputs, into `gradients`."""
    for at in range(len(layers) - 1, -1, -1):
        weight, bias = gradients[at]
        torch.bmm(error.transpose(1, 2), activations[at], out=weight)
        torch.sum(error, 1, keepdim=True, out=bias)
        if at > 0:
            error = threshold_backward(torch.bmm(error, layers[at][0]), activations[at], 0)


def views_of(stack: Tensor, layers: Sequence[tuple[Segment, Segment]]) -> list[tuple[Tensor, Tensor]]:
    """Weights and biases of each layer in every row of a stack of flat vectors."""
    rows, size = stack.shape
    views = []
    for weight, bias in layers:
        outputs, inputs = weight.shape
        weights = stack.as_strided((rows, outputs, inputs), (size, inputs, 1), stack.storage_offset() + weight.start)
        biases = stack.as_strided((rows, 1, outputs), (size, outputs, 1), stack.storage_offset() + bias.start)
        views.append((weights, biases))
    return views


def cross_entropy_rows(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Mean loss of each row, and its derivative by the logits.

    Args:
        logits: shape (rows, batch, classes).
        targets: shape (rows, batch, 1).
    """
    scores = torch.log_softmax(logits, -1)
    share = 1 / targets.shape[1]
    losses = scores.gather(-1, targets).sum((1, 2)).mul_(-share)
    error = scores.exp_().scatter_add_(-1, targets, minus_ones(targets.shape))
    return losses, error.mul_(share)


@lru_cache(maxsize=64)
def minus_ones(shape: torch.Size) -> Tensor:
    """A tensor of this shape that nobody changes; making one costs as much as using it."""
    return torch.full(shape, -1.0)


def fastest(task: Task, model: FlatModel, threads: int = 1) -> Gradients:
    """Stacked gradients for models that can; for others plain ones, on so many threads where that changes nothing."""
    if StackedGradients.supports(task, model):
        return StackedGradients(task, model)
    if threads > 1 and ThreadedGradients.supports(task, model):
        return ThreadedGradients(task, model, threads)
    return PlainGradients(task, model)


@contextmanager
def one_thread() -> Iterator[int]:
    """Keep torch to one thread in the block, so that no result depends on the machine's cores; gives how many it had.

    >>> with one_thread() as before:
    ...     torch.get_num_threads(), before >= 1
    (1, True)
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)
