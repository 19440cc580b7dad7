"""The file of a learned policy: a small network and the conditions that it was trained under, as checked JSON.

Numbers are float32 in base64, little-endian, a layer's weights row by row. Nothing in the file is executed.

    {"format": "polyrhythm-rlp", "version": 1, "checksum": sha256 of all the rest,
     "view": "phase", "window": 3, "keep": true, "loss": "running", "fallback": "asp",
     "conditions": {"workers": [2, 10], "low": [...], "high": [...]},
     "training": {"command": "polyrhythm learn ...", ...},
     "layers": [{"inputs": 14, "outputs": 64, "weights": "...", "bias": "..."}, ...]}
"""

import base64
import json
import stat
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from importlib import resources
from math import isfinite
from operator import mul
from pathlib import Path
from typing import Any

from polyrhythm.errors import SpecError

FORMAT, VERSION = "polyrhythm-rlp", 1
LARGEST = 4_000_000
"""Bytes of the largest file that is read."""
SLOPE = 0.01
"""Of the leaky rectifier below zero."""

Weights = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Layer:
    """Weights, a row per output, and biases."""

    weights: tuple[Weights, ...]
    bias: Weights

    def __call__(self, inputs: Sequence[float]) -> list[float]:
        """The layer's outputs before any rectifier."""
        return [sum(map(mul, row, inputs)) + bias for row, bias in zip(self.weights, self.bias, strict=True)]


@dataclass(frozen=True, slots=True)
class ValueNetwork:
    """Fully connected layers with leaky rectifiers between them, in plain Python.

    >>> ValueNetwork((Layer(((1.0, 1.0),), (0.5,)), Layer(((2.0,), (-1.0,)), (0.0, 0.0)))).values([1.0, 2.0])
    [7.0, -3.5]
    """

    layers: tuple[Layer, ...]

    def values(self, observation: Sequence[float]) -> list[float]:
        outputs: Sequence[float] = observation
        for layer in self.layers[:-1]:
            outputs = [value if value > 0 else SLOPE * value for value in layer(outputs)]
        return self.layers[-1](outputs)

    def best(self, observation: Sequence[float]) -> int:
        """The action of the greatest value; the first of equals."""
        values = self.values(observation)
        return values.index(max(values))


@dataclass(frozen=True, slots=True)
class Conditions:
    """What the training has seen: numbers of workers, and the range of each input.

    >>> Conditions((2, 4), (0.0,), (1.0,)).hold(3, [1.1]), Conditions((2, 4), (0.0,), (1.0,)).hold(8, [0.5])
    (True, False)
    """

    workers: tuple[int, int]
    low: Weights
    high: Weights

    def hold(self, workers: int, observation: Sequence[float]) -> bool:
        """Whether this is no further outside the ranges than a quarter of their width."""
        if not self.workers[0] <= workers <= self.workers[1]:
            return False
        return all(
            low - (high - low) / 4 - 1e-6 <= value <= high + (high - low) / 4 + 1e-6
            for value, low, high in zip(observation, self.low, self.high, strict=True)
        )


@dataclass(frozen=True, slots=True)
class Learned:
    """What a file holds.

    Args:
        view: name of what the network sees and chooses from.
        window: reports of each worker from one look at the progress to the next.
        fallback: spec of the policy that takes over.
        conditions: what the training has seen.
        network: values of the actions.
        training: how it was trained, for people.
        keep: whether the first choice is kept for as long as the same workers are there.
        loss: what it was trained with, "running" or "probe"; see `RLP`.
    """

    view: str
    window: int
    fallback: str
    conditions: Conditions
    network: ValueNetwork
    training: tuple[tuple[str, str], ...] = ()
    keep: bool = False
    loss: str = "running"


def dump(learned: Learned) -> str:
    body = {
        "format": FORMAT,
        "version": VERSION,
        "view": learned.view,
        "window": learned.window,
        "keep": learned.keep,
        "loss": learned.loss,
        "fallback": learned.fallback,
        "conditions": {
            "workers": list(learned.conditions.workers),
            "low": list(learned.conditions.low),
            "high": list(learned.conditions.high),
        },
        "training": dict(learned.training),
        "layers": [dump_layer(layer) for layer in learned.network.layers],
    }
    return json.dumps({**body, "checksum": checksum(body)}, indent=1) + "\n"


def dump_layer(layer: Layer) -> dict[str, Any]:
    flat = [weight for row in layer.weights for weight in row]
    sizes = {"inputs": len(layer.weights[0]), "outputs": len(layer.weights)}
    return {**sizes, "weights": encode(flat), "bias": encode(layer.bias)}


def encode(values: Iterable[float]) -> str:
    """float32, little-endian, in base64."""
    numbers = array("f", values)
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode("ascii")


def decode(text: str, count: int) -> Weights:
    """The reverse of `encode`, for so many finite numbers."""
    numbers = array("f")
    numbers.frombytes(base64.b64decode(text, validate=True))
    if sys.byteorder == "big":
        numbers.byteswap()
    if len(numbers) != count or not all(map(isfinite, numbers)):
        raise ValueError(f"expected {count} finite numbers")
    return tuple(numbers)


def checksum(body: Mapping[str, Any]) -> str:
    rest = {key: value for key, value in body.items() if key != "checksum"}
    return sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def parse(text: str) -> Learned:
    """What the text of a file says."""
    body = json.loads(text)
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise ValueError(f"it is not in the format {FORMAT}")
    if body.get("version") != VERSION:
        raise ValueError(f"it has version {body.get('version')}, this is {VERSION}")
    if body.get("checksum") != checksum(body):
        raise ValueError("its checksum does not fit; it was changed or cut off")
    conditions = body["conditions"]
    low, high = (tuple(map(float, conditions[side])) for side in ("low", "high"))
    least, most = map(int, conditions["workers"])
    network = ValueNetwork(tuple(parse_layer(layer) for layer in body["layers"]))
    training = tuple((str(key), str(value)) for key, value in body["training"].items())
    learned = Learned(
        str(body["view"]),
        int(body["window"]),
        body["fallback"],
        Conditions((least, most), low, high),
        network,
        training,
        bool(body.get("keep", False)),
        str(body.get("loss", "running")),
    )
    check_shapes(learned)
    return learned


def parse_layer(layer: Mapping[str, Any]) -> Layer:
    inputs, outputs = int(layer["inputs"]), int(layer["outputs"])
    flat = decode(layer["weights"], inputs * outputs)
    rows = tuple(flat[start : start + inputs] for start in range(0, len(flat), inputs))
    return Layer(rows, decode(layer["bias"], outputs))


def check_shapes(learned: Learned) -> None:
    """Each layer takes what the one before gives, and the first what the conditions describe."""
    layers, conditions = learned.network.layers, learned.conditions
    widths = [len(conditions.low), *(len(layer.bias) for layer in layers)]
    if not layers or len(conditions.high) != widths[0] or learned.window < 1:
        raise ValueError("it has no layers, no window, or conditions of unequal length")
    for width, layer in zip(widths, layers, strict=False):
        if any(len(row) != width for row in layer.weights):
            raise ValueError(f"a layer takes {len(layer.weights[0])} numbers where {width} come")


def load(file: str) -> Learned:
    """The learned policy in a file; the one that ships with the package for an empty name."""
    if not file:
        return shipped()
    path = Path(file)
    try:
        facts = path.stat()
        if not stat.S_ISREG(facts.st_mode):
            raise SpecError(f"rlp file {file!r} is no ordinary file; 'polyrhythm learn' writes one")
        return load_version(str(path.resolve()), facts.st_mtime_ns, facts.st_size)
    except OSError as error:
        raise SpecError(f"rlp file {file!r} cannot be read: {error.strerror}; 'polyrhythm learn' writes one") from error


@lru_cache(maxsize=16)
def load_version(path: str, changed_ns: int, size: int) -> Learned:
    """One version of a file, read once."""
    del changed_ns
    if size > LARGEST:
        raise SpecError(
            f"rlp file {path!r} has {size} bytes, more than {LARGEST}; 'polyrhythm learn' writes small ones"
        )
    return checked(Path(path).read_bytes(), path)


@lru_cache(maxsize=1)
def shipped() -> Learned:
    return checked(resources.files("polyrhythm.policies.rlp").joinpath("shipped.json").read_bytes(), "rlp_shipped.json")


def checked(content: bytes, path: str) -> Learned:
    """The policy that these bytes are; what is wrong with them is one line."""
    try:
        return parse(content.decode("utf-8"))
    except (ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SpecError(f"rlp file {path!r} is no learned policy: {reason}; 'polyrhythm learn' writes one") from error
