"""The script's loaders: where each was made, and which of them the steps draw from."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader

from polyrhythm.runtime.script.notices import script_line, script_lines


class Loaders:
    """Those that the script's own code has made.

    Attributes:
        training: the one that steps are made from, once that has shown.
        read: how torch begins to read one.
    """

    def __init__(self) -> None:
        self.training: DataLoader[Any] | None = None
        self.read: Callable[[DataLoader[Any]], Iterator[Any]] = iter
        self._other: DataLoader[Any] | None = None
        self._places: WeakKeyDictionary[DataLoader[Any], str] = WeakKeyDictionary()
        self._origins: WeakKeyDictionary[DataLoader[Any], str] = WeakKeyDictionary()
        self._later: WeakKeyDictionary[DataLoader[Any], int] = WeakKeyDictionary()
        """Those that were made since steps are made from another, with their number among all by the same lines."""
        self._made: Counter[str] = Counter()

    def __contains__(self, loader: DataLoader[Any]) -> bool:
        return loader in self._places

    def made(self, loader: DataLoader[Any]) -> None:
        self._places[loader], self._origins[loader] = script_line(), script_lines()
        if self.training is not None:
            origin = self._origins[loader]
            self._later[loader] = self._made[origin]
            self._made[origin] += 1

    def begin_again(self) -> None:
        """A training is over; what the next one reads is yet to show."""
        self.training = self._other = None
        self._later.clear()
        self._made.clear()

    def place(self, loader: DataLoader[Any]) -> str:
        """The script's line that has made it."""
        return self._places[loader]

    def trains_on(self, loader: DataLoader[Any]) -> bool:
        """Whether it is the training loader, or one that the script has made in its place for another epoch."""
        known = self.training
        if known is None or loader is known:
            return loader is known
        if loader.batch_size != known.batch_size or self._places[loader] != self._places[known]:
            return False
        return loader.dataset is known.dataset or (self._renews(loader) and lengths(loader) == lengths(known))

    def _renews(self, loader: DataLoader[Any]) -> bool:
        """Whether it was made as the training loader was, but since steps are made from that."""
        return self.training is not None and loader in self._later and self.replaces(loader, self.training)

    def replaces(self, loader: DataLoader[Any], known: DataLoader[Any]) -> bool:
        """Whether the same lines have made both, for the same data or the later one since steps are made."""
        alike = self._origins[loader] == self._origins[known]
        return alike and (loader.dataset is known.dataset or loader in self._later)

    def turn(self, loader: DataLoader[Any]) -> int:
        """How many loaders these lines have made before since steps are made."""
        return self._later.get(loader, 0)

    def pass_over(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """The script reads one that is not the training loader."""
        self._other = loader
        return self.read(loader)

    def other(self) -> str:
        """Why the latest of these is not the training loader although it looks like one; or nothing."""
        loader = self._other
        if loader is None or self.training is None or not self._renews(loader):
            return ""
        if loader.batch_size != self.training.batch_size:
            return (
                "the loader of another epoch must have the batch size of the first, so that the job can deal it out: "
                f"{loader.batch_size} and {self.training.batch_size}; keep one batch size in all epochs"
            )
        return (
            "the data set of another epoch must be as long as the first, so that the job can deal it out: "
            f"{lengths(loader)} samples and {lengths(self.training)}"
        )


class TrainingLoaders:
    """Those that a script makes its steps from without the job's dealing, and others that take their places.

    Args:
        loaders: all of the script.
        training: those of the warm-up step.
    """

    def __init__(self, loaders: Loaders, training: Iterable[DataLoader[Any]]) -> None:
        self._loaders = loaders
        self._latest = list(dict.fromkeys(training))

    def __len__(self) -> int:
        return len(self._latest)

    def number(self, loader: DataLoader[Any]) -> int | None:
        """Which of them it is, or takes the place of; None if it is none.

        Several may come from one line, as in a comprehension: then the data tell them apart, or else they come in turn.
        """
        if (own := next((number for number, known in enumerate(self._latest) if known is loader), None)) is not None:
            return own
        alike = [number for number, known in enumerate(self._latest) if self._loaders.replaces(loader, known)]
        alike = [number for number in alike if self._latest[number].dataset is loader.dataset] or alike
        if not alike:
            return None
        number = alike[self._loaders.turn(loader) % len(alike)]
        self._latest[number] = loader
        return number


def lengths(loader: DataLoader[Any]) -> int:
    """Samples of its data set; 0 if that does not say."""
    try:
        return len(loader.dataset)  # type: ignore[arg-type]
    except TypeError:
        return 0


def length_of(loader: DataLoader[Any]) -> int | None:
    """Mini-batches of an epoch, if the loader says so."""
    try:
        return len(loader)
    except TypeError:
        return None
