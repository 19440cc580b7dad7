import io
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from PIL import Image

from polyrhythm.errors import DataError
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.tasks import build_task
from polyrhythm.training.data.tasks.images import cache_folder


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("POLYRHYTHM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def png(side: int, channels: int, seed: int) -> tuple[bytes, Any]:
    shape = (side, side) if channels == 1 else (side, side, channels)
    pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    Image.fromarray(pixels).save(stream := io.BytesIO(), format="PNG")
    return stream.getvalue(), pixels


def write(path: Path, rows: list[Any], image: str = "image", label: str = "label") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    labels = [i % 10 for i in range(len(rows))]
    pyarrow.parquet.write_table(pyarrow.table({image: rows, label: labels}), path)


def encoded(count: int, side: int = 28, channels: int = 1, seed: int = 0) -> list[Any]:
    return [{"bytes": png(side, channels, seed + i)[0], "path": None} for i in range(count)]


def config(folder: Path | None, task: str = "fashion-mnist", **fields: Any) -> TrainingConfig:
    return TrainingConfig(task=task, model="mlp", data=None if folder is None else str(folder), **fields)


def test_pixels_and_labels_are_those_of_the_files(tmp_path: Path) -> None:
    write(tmp_path / "data" / "train-00000.parquet", encoded(12))
    write(tmp_path / "data" / "test-00000.parquet", encoded(4, seed=50))
    task = build_task(config(tmp_path / "data"))
    assert torch.equal(task.train.inputs[3, 0], torch.from_numpy(png(28, 1, 3)[1]))
    assert task.train.targets.tolist() == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    inputs, _ = task.batch(torch.arange(12))
    assert abs(inputs.mean()) < 1e-4
    assert abs(inputs.std() - 1) < 1e-3
    assert task.evaluate(task.build(0)).loss > 0


def test_colours_are_channels_and_img_is_a_name_too(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path / f"{split}.parquet", encoded(3, side=32, channels=3), image="img")
    task = build_task(config(tmp_path, "cifar10"))
    assert torch.equal(task.train.inputs[1], torch.from_numpy(png(32, 3, 1)[1]).permute(2, 0, 1))
    assert task.mean.shape == (3, 1, 1)
    channels = task.train.inputs.double().transpose(0, 1).flatten(1)
    torch.testing.assert_close(task.mean.flatten(), channels.mean(1).float())
    torch.testing.assert_close(task.std.flatten(), channels.std(1, correction=0).float())


def test_smaller_images_are_means_of_the_same_files(tmp_path: Path, own_cache: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path / f"cifar10-{split}.parquet", encoded(3, side=32, channels=3))
    full, small = (build_task(config(tmp_path, name)) for name in ("cifar10", "cifar10-16"))
    assert len(list(own_cache.iterdir())) == 2
    means = torch.nn.functional.avg_pool2d(full.test.inputs.double(), 2)
    assert small.test.inputs.shape == (3, 3, 16, 16)
    assert (small.test.inputs.double() - means).abs().max() <= 0.5
    assert small.evaluate(small.build(0)).loss > 0
    inputs, _ = small.batch(torch.arange(3))
    torch.testing.assert_close(inputs.std((0, 2, 3), correction=0), torch.ones(3))


def test_of_several_data_sets_in_one_folder_the_named_one_is_read(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path / f"fashion_mnist-{split}.parquet", encoded(5))
        write(tmp_path / f"cifar10-{split}.parquet", encoded(3, side=32, channels=3))
    assert len(build_task(config(tmp_path)).train) == 5
    assert len(build_task(config(tmp_path, "cifar10")).train) == 3


def test_decoded_tensors_are_cached_until_a_file_changes(tmp_path: Path, own_cache: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path / f"{split}.parquet", encoded(5))
    first = build_task(config(tmp_path))
    names = sorted(path.name for path in own_cache.iterdir())
    assert len(names) == 2
    assert torch.equal(build_task(config(tmp_path)).train.inputs, first.train.inputs)
    assert sorted(path.name for path in own_cache.iterdir()) == names
    write(tmp_path / "train.parquet", encoded(6))
    assert len(build_task(config(tmp_path)).train) == 6


def test_the_cache_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("POLYRHYTHM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x")
    assert cache_folder() == Path("/x/polyrhythm")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "polyrhythm"


def bad_folder(tmp_path: Path, case: str) -> Path:
    if case == "missing":
        return tmp_path / "nowhere"
    if case == "no files":
        tmp_path.joinpath("data").mkdir()
    if case == "columns":
        write(tmp_path / "data" / "train.parquet", encoded(2), image="picture", label="class")
    if case == "not parquet":
        tmp_path.joinpath("data").mkdir()
        tmp_path.joinpath("data/train.parquet").write_bytes(b"PAR0")
    if case == "size":
        write(tmp_path / "data" / "train.parquet", encoded(2, side=16))
    if case == "not an image":
        write(tmp_path / "data" / "train.parquet", [{"bytes": b"x", "path": None}])
    if case == "numbers":
        write(tmp_path / "data" / "train.parquet", [1, 2])
    if case == "empty":
        write(tmp_path / "data" / "train.parquet", [])
    write(tmp_path / "data" / "test.parquet", encoded(2))
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("case", "message"),
    [
        ("missing", "does not exist; give a folder with parquet files of fashion-mnist"),
        ("no files", "has no *.parquet file with 'train' in its name"),
        ("columns", "expected columns image (or img) and label but got picture, class"),
        ("not parquet", "not a parquet file that can be read"),
        ("size", "row 0: expected 28x28 pixels but got (16, 16)"),
        ("not an image", "row 0: expected the bytes of an image file"),
        ("numbers", "row 0: expected the bytes of an image file"),
        ("empty", "have no rows"),
    ],
)
def test_bad_data_are_one_clear_line(tmp_path: Path, case: str, message: str) -> None:
    folder = bad_folder(tmp_path, case)
    with pytest.raises(DataError) as caught:
        build_task(config(folder))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"datasets is not installed; run: pip install 'polyrhythm\[data\]'"):
        build_task(config(None))


class Table(list[dict[str, Any]]):
    """Stands in for a downloaded data set."""

    column_names = ("image", "label")

    def cast_column(self, name: str, kind: Any) -> "Table":
        assert (name, kind) == ("image", "undecoded")
        return self


def test_a_download_goes_through_the_hub_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(repository: str, split: str) -> Table:
        asked.append((repository, split))
        return Table({"image": row, "label": i} for i, row in enumerate(encoded(4)))

    fake = SimpleNamespace(load_dataset=load_dataset, Image=lambda decode: "decoded" if decode else "undecoded")
    monkeypatch.setitem(sys.modules, "datasets", fake)
    for _ in range(2):
        assert build_task(config(None)).train.targets.tolist() == [0, 1, 2, 3]
    assert asked == [("zalando-datasets/fashion_mnist", "train"), ("zalando-datasets/fashion_mnist", "test")]


def test_a_failed_download_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(repository: str, split: str) -> Table:
        raise ConnectionError("no route\nto the coordinator")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(DataError, match=r"no route to the coordinator\); give training.data, a folder") as caught:
        build_task(config(None))
    assert "\n" not in str(caught.value)
