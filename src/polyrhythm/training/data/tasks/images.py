"""Fashion-MNIST and CIFAR-10, from a folder of parquet files or by download through Hugging Face datasets.

Files are decoded once; the tensors are kept in the user's cache (``$POLYRHYTHM_CACHE``, else
``$XDG_CACHE_HOME/polyrhythm``, else ``~/.cache/polyrhythm``).
"""

import io
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from polyrhythm.errors import DataError
from polyrhythm.training.data.task import Split, Task
from polyrhythm.training.data.tasks.download import download_if_reached
from polyrhythm.training.models import vision_model

IMAGE_COLUMNS = ("image", "img")
LABEL_COLUMN = "label"
SPLITS = ("train", "test")


@dataclass(frozen=True, slots=True)
class ImageSet:
    """A data set of square images in ten classes: its repository on huggingface.co and its format.

    `halvings` is how often each square of four pixels becomes one, their mean; a user gives a folder of it by the name
    `given_by`.
    """

    name: str
    repository: str
    channels: int
    side: int
    # Not shown, as the cache's files do not depend on them.
    halvings: int = field(default=0, repr=False)
    given_by: str = field(default="training.data", repr=False)

    @property
    def mode(self) -> str:
        """Pillow's name of the pixel format."""
        return "L" if self.channels == 1 else "RGB"


IMAGE_SETS = {
    "fashion-mnist": ImageSet("fashion-mnist", "zalando-datasets/fashion_mnist", channels=1, side=28),
    "cifar10": ImageSet("cifar10", "uoft-cs/cifar10", channels=3, side=32),
    "cifar10-16": ImageSet("cifar10", "uoft-cs/cifar10", channels=3, side=32, halvings=1),
}


def image_task(kind: ImageSet, model: str, folder: str | None) -> Task:
    """The task on a data set of images, held as bytes and standardised per channel with the training set's figures.

    Args:
        kind: which one.
        model: name of a model of the catalogue.
        folder: has parquet files with "train" and "test" in their names, columns image (or img) and label; None
            downloads.

    Raises:
        DataError: for a missing folder, file, column or package.
    """
    train, test = (load_split(kind, split, folder) for split in SPLITS)
    for _ in range(kind.halvings):
        train, test = halved(train), halved(test)
    mean, std = channel_statistics(train.inputs)
    build = vision_model(model, kind.channels, kind.side >> kind.halvings)
    return Task(kind.name, train, test, build, mean=mean, std=std)


def halved(split: Split) -> Split:
    """Images of half the side, of bytes too.

    >>> halved(Split(torch.tensor([[[[1, 2], [3, 4]]]], dtype=torch.uint8), torch.tensor([7]))).inputs.tolist()
    [[[[3]]]]
    """
    samples, channels, side, _ = split.inputs.shape
    squares = split.inputs.view(samples, channels, side // 2, 2, side // 2, 2)
    sums = squares.sum((3, 5), dtype=torch.int16)
    return Split(sums.add_(2).bitwise_right_shift_(2).to(torch.uint8), split.targets)


def channel_statistics(images: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of each channel of bytes, of shape (channels, 1, 1); from counts, to save memory."""
    levels = torch.arange(256, dtype=torch.float64)
    counts = torch.stack([torch.bincount(c.reshape(-1), minlength=256) for c in images.unbind(1)]).double()
    shares = counts / counts.sum(1, keepdim=True)
    mean = shares @ levels
    std = (shares @ levels.square() - mean.square()).sqrt()
    return mean.float().view(-1, 1, 1), std.clamp(min=1).float().view(-1, 1, 1)  # a blank channel has none


def fetch_images(kind: ImageSet, folder: str | None) -> None:
    """Have all splits in the cache, so that nobody who reads them later finds them missing or broken.

    Raises:
        DataError: as of `image_task`.
    """
    for split in SPLITS:
        cached_split(kind, split, folder)


def load_split(kind: ImageSet, split: str, folder: str | None) -> Split:
    """One split, in memory."""
    tensors = torch.load(cached_split(kind, split, folder), weights_only=True)
    return Split(tensors["inputs"], tensors["targets"])


def cached_split(kind: ImageSet, split: str, folder: str | None) -> Path:
    """Where one split is decoded, as it is now if it was not before."""
    files = local_files(kind, split, Path(folder)) if folder is not None else []
    facts = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    digest = sha256(repr((kind, split, facts)).encode()).hexdigest()[:16]
    cached = cache_folder() / f"{kind.name}-{split}-{digest}.pt"
    if not cached.exists():
        table = read_parquet(files) if files else download(kind, split)
        save(cached, decode(kind, table))
    return cached


def cache_folder() -> Path:
    """Where decoded tensors are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("POLYRHYTHM_CACHE") or Path(base) / "polyrhythm")


def save(path: Path, split: Split) -> None:
    """Write a split so that other processes see all of it or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    torch.save({"inputs": split.inputs, "targets": split.targets}, partial)
    partial.replace(path)


def local_files(kind: ImageSet, split: str, folder: Path) -> list[Path]:
    """Parquet files of a split, in order; if some name the data set, only these."""
    if not folder.is_dir():
        wrong = "is no folder" if folder.exists() else "does not exist"
        raise DataError(f"data folder {str(folder)!r} {wrong}; give a folder with parquet files of {kind.name}")
    found = sorted(path for path in folder.rglob("*.parquet") if split in path.name.lower())
    named = [path for path in found if plain(kind.name) in plain(str(path.relative_to(folder)))]
    if not found:
        raise DataError(f"data folder {str(folder)!r} has no *.parquet file with {split!r} in its name")
    return named or found


def plain(name: str) -> str:
    """A name without separators, in lower case.

    >>> plain("Fashion_MNIST-train") == plain("fashion-mnist train")
    True
    """
    return "".join(character for character in name.lower() if character.isalnum())


def read_parquet(files: Iterable[Path]) -> Iterable[tuple[Any, int]]:
    """Encoded images and labels of some files."""
    parquet = needed("pyarrow.parquet")
    for file in files:
        try:
            table = parquet.read_table(file)
        except (OSError, ValueError) as error:
            raise DataError(f"{file}: not a parquet file that can be read: {error}") from error
        image = image_column(table.column_names, str(file))
        yield from zip(table[image].to_pylist(), table[LABEL_COLUMN].to_pylist(), strict=True)


def download(kind: ImageSet, split: str) -> Iterable[tuple[Any, int]]:
    """The same by download."""
    datasets = needed("datasets")
    try:
        with download_if_reached():
            table = datasets.load_dataset(kind.repository, split=split)
    except (OSError, ValueError) as error:
        raise DataError(
            f"{kind.name} could not be downloaded ({type(error).__name__}: {' '.join(str(error).split())}); "
            f"give {kind.given_by}, a folder with its parquet files"
        ) from error
    image = image_column(table.column_names, kind.repository)
    table = table.cast_column(image, datasets.Image(decode=False))
    return ((row[image], row[LABEL_COLUMN]) for row in table)


def needed(module: str) -> Any:
    """A module of the extra "data"."""
    try:
        return import_module(module)
    except ImportError as error:
        raise DataError(f"{module} is not installed; run: pip install 'polyrhythm[data]'") from error


def image_column(columns: Iterable[str], where: str) -> str:
    """Name of the column with images."""
    columns = list(columns)
    image = next((name for name in IMAGE_COLUMNS if name in columns), None)
    if image is None or LABEL_COLUMN not in columns:
        raise DataError(f"{where}: expected columns image (or img) and label but got {', '.join(columns)}")
    return image


def decode(kind: ImageSet, rows: Iterable[tuple[Any, int]]) -> Split:
    """Images as bytes of shape (samples, channels, side, side), and their labels."""
    pillow = needed("PIL.Image")
    inputs: list[Tensor] = []
    targets: list[int] = []
    for encoded, label in rows:
        inputs.append(decode_image(kind, pillow, encoded, len(inputs)))
        targets.append(label)
    if not inputs:
        raise DataError(f"the files of {kind.name} have no rows")
    return Split(torch.stack(inputs), torch.tensor(targets, dtype=torch.int64))


def decode_image(kind: ImageSet, pillow: Any, encoded: Any, row: int) -> Tensor:
    """One image of the Hugging Face format, a struct with the bytes of an image file."""
    try:
        image = pillow.open(io.BytesIO(encoded["bytes"])).convert(kind.mode)
    except (TypeError, KeyError, OSError) as error:
        raise DataError(f"{kind.name} row {row}: expected the bytes of an image file in the column image") from error
    if image.size != (kind.side, kind.side):
        raise DataError(f"{kind.name} row {row}: expected {kind.side}x{kind.side} pixels but got {image.size}")
    pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
    return pixels.view(kind.side, kind.side, kind.channels).permute(2, 0, 1)
