"""Sums of compressed contributions: payloads cannot be added up on the way, so everyone gets all of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.ops import InFlight, all_reduce, give_gradients, launch, used_and_joined
from polyrhythm.training.codecs import Compressor, as_bytes, as_numbers, decode, encode


@dataclass(slots=True)
class Gathering:
    """Everyone's payloads on their way, of one vector that is compressed and one that is not.

    Args:
        compressor: of this worker.
        shares: weight of each member; a member without any sends zeros.
        sizes: elements of either vector.
        payloads: what arrives, by rank.
        reduction: the collective.
        device: where the sums are wanted.
    """

    compressor: Compressor
    shares: Sequence[float]
    sizes: tuple[int, int]
    payloads: list[Tensor]
    reduction: InFlight
    device: torch.device

    def wait(self) -> None:
        """Until everything has arrived.

        Raises:
            GroupError: when a member is lost.
        """
        self.reduction.wait()

    def sums(self) -> tuple[Tensor, Tensor]:
        """The weighted sum of either vector, the same bits on every member."""
        elements, plain = self.sizes
        total, rest = torch.zeros(elements), torch.zeros(plain)
        cut = self.compressor.compression.size(elements)
        for payload, share in zip(self.payloads, self.shares, strict=True):
            if share:
                total.add_(decode(self.compressor.compression, payload[:cut], elements), alpha=share)
                rest.add_(as_numbers(payload[cut:], torch.float32), alpha=share)
        return total.to(self.device), rest.to(self.device)


def launch_gathering(
    generation: Generation,
    compressor: Compressor,
    shares: Sequence[float],
    vector: Tensor,
    plain: Tensor,
    start: int = 0,
) -> Gathering:
    """Start to send a vector, compressed, and what goes with it as it is, to everyone.

    Args:
        generation: who takes part.
        compressor: of this worker.
        shares: weight of each member by rank.
        vector: flat, float32; of a slice, `start` is its first element.
        plain: flat, float32.
        start: see `vector`.
    """
    if shares[generation.rank]:
        payload = compressor.encode(vector, start)
    else:
        payload = encode(compressor.compression, torch.zeros(len(vector)), compressor.random)
    own = torch.cat([payload, as_bytes(plain.cpu())])
    payloads = [torch.empty_like(own) for _ in range(generation.size)]
    reduction = launch(generation, "allgather", payloads, [payloads], [own])
    return Gathering(compressor, shares, (len(vector), len(plain)), payloads, reduction, vector.device)


def mean_compressed_gradients(
    generation: Generation,
    compressor: Compressor,
    parameters: Sequence[nn.Parameter],
    shares: Sequence[float],
    adopts: bool = True,
) -> None:
    """As `collectives.mean_gradients`, with the contributions compressed.

    Raises:
        GroupError: when a member is lost; the gradients are unchanged then.
    """
    used, flat = used_and_joined(parameters)
    gathering = launch_gathering(generation, compressor, shares, flat.float(), flat[:0].float())
    all_reduce(generation, used)
    gathering.wait()
    if adopts:
        give_gradients(parameters, gathering.sums()[0], used)
