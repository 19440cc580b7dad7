import json
import os
import random
import re
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.errors import SpecError
from polyrhythm.policies.rlp.network import (
    LARGEST,
    SLOPE,
    Layer,
    ValueNetwork,
    checksum,
    decode,
    dump,
    encode,
    load,
    parse,
)
from tests.policies.learned import learned, written

quiet = settings(max_examples=30, deadline=None, derandomize=True, database=None)


@pytest.mark.parametrize("view", ["phase", "paper"])
def test_a_file_holds_what_was_written(tmp_path: Path, view: str) -> None:
    first = parse(dump(learned(view)))
    assert load(written(tmp_path, first)) == first
    assert parse(dump(first)) == first


@quiet
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_numbers_survive(values: list[float]) -> None:
    assert decode(encode(values), len(values)) == tuple(values)


def test_the_network_is_the_one_that_torch_computes() -> None:
    rng = random.Random(1)
    widths = (14, 8, 5, 4)
    layers = tuple(
        Layer(
            tuple(tuple(rng.gauss(0, 1) for _ in range(inputs)) for _ in range(outputs)),
            tuple(rng.gauss(0, 1) for _ in range(outputs)),
        )
        for inputs, outputs in pairwise(widths)
    )
    x = torch.randn(14, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = x
    for number, layer in enumerate(layers):
        expected = torch.tensor(layer.weights, dtype=torch.float64) @ expected + torch.tensor(layer.bias)
        if number < len(layers) - 1:
            expected = torch.nn.functional.leaky_relu(expected, SLOPE)
    assert ValueNetwork(layers).values(x.tolist()) == pytest.approx(expected.tolist())


def broken(**changes: object) -> str:
    """A file with other content and a checksum that fits."""
    body = json.loads(dump(learned())) | changes
    return json.dumps({**body, "checksum": checksum(body)})


LAYER = json.loads(dump(learned()))["layers"][0]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "Expecting value"),
        ("[]", "not in the format"),
        ("\x80\x04", "no learned policy"),
        (dump(learned()).replace('"window": 2', '"window": 3'), "its checksum does not fit"),
        (broken(version=2), "it has version 2"),
        (broken(layers=[]), "it has no layers"),
        (broken(layers=[LAYER, LAYER]), "a layer takes 14 numbers where 4 come"),
        (broken(layers=[{**LAYER, "bias": encode([float("nan")] * 4)}]), "expected 4 finite numbers"),
        (broken(layers=[{**LAYER, "weights": "%%"}]), "no learned policy"),
        (broken(conditions={}), "low"),
        (broken(training=3), "no learned policy"),
        (broken(window=float("inf")), "no learned policy"),
        (broken(conditions={"workers": [2, 4], "low": [10**400], "high": [1]}), "no learned policy"),
    ],
)
def test_what_is_no_policy_is_refused_in_one_line(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(SpecError, match=re.escape(reason)) as caught:
        load(str(path))
    assert "\n" not in str(caught.value)


def test_missing_and_huge_files(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="No such file"):
        load(str(tmp_path / "none.json"))
    os.mkfifo(tmp_path / "pipe")
    for file in (tmp_path / "pipe", tmp_path):
        with pytest.raises(SpecError, match="is no ordinary file"):
            load(str(file))
    huge = tmp_path / "huge.json"
    huge.write_bytes(b" " * (LARGEST + 1))
    with pytest.raises(SpecError, match="more than"):
        load(str(huge))


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path = written(tmp_path, learned(best=0))
    assert load(path).network.best([0.0] * 14) == 0
    written(tmp_path, learned(best=3, window=12))
    assert load(path).network.best([0.0] * 14) == 3
