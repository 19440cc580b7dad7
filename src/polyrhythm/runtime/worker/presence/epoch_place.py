"""Where a script's own checkpoint stands within an epoch, as its session's state has it."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from polyrhythm.errors import UsageError
from polyrhythm.runtime.wire.protocol import Term
from polyrhythm.runtime.wire.recovery.resumption import Resumption
from polyrhythm.runtime.wire.shard_protocol import other_term


class EpochPlace(NamedTuple):
    """What is left of an epoch, and of which one: its number of samples, and what else says which they are."""

    resumption: Resumption
    dataset_samples: int
    terms: Mapping[str, Term]

    @property
    def as_state(self) -> dict[str, Any]:
        """Numbers, texts and containers.

        >>> EpochPlace.of(EpochPlace(Resumption(policy="bsp"), 8, {"seed": 1}).as_state).terms
        {'seed': 1}
        """
        return {**msgspec.to_builtins(self.resumption), "samples": self.dataset_samples, "terms": dict(self.terms)}

    @classmethod
    def of(cls, state: Mapping[str, Any]) -> "EpochPlace":
        """What `as_state` has made.

        Raises:
            UsageError: for anything else.
        """
        rest = dict(state)
        try:
            samples, terms = int(rest.pop("samples")), dict(rest.pop("terms"))
            return cls(msgspec.convert(rest, Resumption), samples, terms)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"session state has a position that cannot be read: {error}") from None

    def checked(self, dataset_samples: int, terms: Mapping[str, Term]) -> Resumption:
        """What goes with the first epoch of a loader of this data.

        Raises:
            UsageError: if the checkpoint was made with other data, or another order of it.
        """
        if dataset_samples != self.dataset_samples:
            counts = f"the data set has {dataset_samples} samples, that of the checkpoint {self.dataset_samples}"
            raise UsageError(f"{counts}; give the same data set")
        if name := other_term(terms, self.terms):
            ours, theirs = terms.get(name), self.terms.get(name)
            raise UsageError(
                f"the loader has {name}={ours}, that of the checkpoint {name}={theirs}, which goes on within an "
                f"epoch; give the same {name}"
            )
        return self.resumption
