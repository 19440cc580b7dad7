"""Names and sizes of what is sent instead of gradients and replicas to save bytes; `codecs` does it.

| spec | a number travels as | bytes of n numbers |
|---|---|---|
| ``none`` | float32 | 4 n |
| ``fp16`` | half precision, cut off at 65,504 | 2 n |
| ``bf16`` | bfloat16 | 2 n |
| ``int8`` | 8 bits times its block's largest magnitude / 127, rounded at random without bias | n + 4 n / 256 |
| ``topk:r`` | itself and its index, if it is among the r n of largest magnitude; else not at all | 8 r n |

What ``topk`` does not send is kept and added to what is sent next (error feedback; Stich et al. 2018). Random rounding
is that of QSGD (Alistarh et al. 2017), with a scale for each block.

Gradients are compressed where they are pushed; of a replica, its difference from what its worker took over last. The
result of an average comes back in full. Parameters that are pulled are halves under ``fp16`` and ``bf16``, and in full
under ``int8`` and ``topk``.
"""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from polyrhythm.errors import ScenarioError, did_you_mean

BLOCK = 256
"""Numbers that share a scale."""

PullType: TypeAlias = Literal["float32", "float16", "bfloat16"]

PULLED: dict[str, PullType] = {
    "none": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "int8": "float32",
    "topk": "float32",
}
"""Kinds, and the type in which parameters are pulled."""


@dataclass(frozen=True, slots=True)
class Compression:
    """How contributions travel.

    Args:
        kind: name of the table's row.
        share: of the numbers that ``topk`` sends.

    Example:
        >>> parse_compression("int8").size(512), parse_compression("topk:0.01").ratio
        (520, 0.02)
    """

    kind: str = "none"
    share: float = 1.0

    @property
    def spec(self) -> str:
        """What `parse_compression` reads."""
        return f"topk:{self.share:g}" if self.kind == "topk" else self.kind

    @property
    def feedback(self) -> bool:
        """Whether what is not sent is kept for the next time."""
        return self.kind == "topk"

    @property
    def pulled(self) -> PullType:
        """Type of the parameters that are pulled."""
        return PULLED[self.kind]

    def count(self, elements: int) -> int:
        """How many numbers ``topk`` sends; at least one."""
        return min(elements, max(1, math.ceil(self.share * elements - 1e-9)))

    def size(self, elements: int) -> int:
        """Bytes of a payload."""
        match self.kind:
            case "none":
                return 4 * elements
            case "int8":
                return elements + 4 * -(-elements // BLOCK)
            case "topk":
                return 8 * self.count(elements)
        return 2 * elements

    @property
    def ratio(self) -> float:
        """Bytes of a long payload relative to float32."""
        return round(self.size(1_024_000_000) / 4_096_000_000, 9)

    @property
    def pull_ratio(self) -> float:
        """The same for parameters that are pulled."""
        return 1.0 if self.pulled == "float32" else 0.5


NOTHING = Compression()


def parse_compression(spec: str) -> Compression:
    """The compression that a spec names.

    Raises:
        ScenarioError: for an unknown name or an impossible value.

    Example:
        >>> parse_compression("topk:0.01")
        Compression(kind='topk', share=0.01)
    """
    kind, colon, argument = spec.strip().partition(":")
    if kind not in PULLED:
        raise ScenarioError(f"unknown compression {kind!r}: {did_you_mean(kind, PULLED)}")
    if kind != "topk":
        if colon:
            raise ScenarioError(f"compression {kind} takes no value, but got {spec!r}")
        return Compression(kind)
    try:
        share = float(argument)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise ScenarioError(f"compression topk needs a share in (0, 1], such as topk:0.01, but got {spec!r}")
    return Compression(kind, share)
