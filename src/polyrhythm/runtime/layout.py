"""DistributedDataParallel across switches: its flags, and the layout of its buckets.

DistributedDataParallel orders gradients into buckets at its second forward pass, in the order in which they were ready
in the first backward pass. Members with different layouts sum different gradients, or make gloo abort the process. So
ranks separate only after that, a joiner goes through it by itself, and `fingerprint` is compared when an epoch begins.
"""

from collections.abc import Callable
from hashlib import blake2b

import torch
from torch.nn.parallel import DistributedDataParallel

from polyrhythm.runtime.collectives.switchable_group import SwitchGroup


def enter_local(ddp: DistributedDataParallel) -> None:
    """Before steps in which this worker's gradients are its own: skip the buckets, a quarter of an 11 M step.

    Two kinds of model stay with their buckets, on a group that is the identity: one with unused parameters to find,
    since the reducer would take those used apart for used in synchronous mode, where their gradients are gone; and a
    static graph that has not made its first backward pass through the buckets, which the reducer insists on.
    """
    finds_unused = ddp.find_unused_parameters and not ddp.static_graph
    unmade = ddp.static_graph and not ddp._static_graph_delay_allreduce_enqueued
    ddp.require_backward_grad_sync = finds_unused or unmade


def enter_lockstep(ddp: DistributedDataParallel) -> None:
    """Before steps in synchronous mode.

    A worker whose last forward pass was an evaluation would not take part in the broadcast of buffers that begins the
    next one, and the others would wait for it.
    """
    ddp.require_backward_grad_sync = True
    ddp.require_forward_param_sync = True


def enter_unbucketed(ddp: DistributedDataParallel) -> None:
    """Before steps in synchronous mode with members whose buckets differ: their owner averages gradients as one vector.

    See `polyrhythm.runtime.collectives.ops.mean_gradients`. Buffers are not broadcast then; their owner does that too.
    """
    ddp.require_backward_grad_sync = False
    ddp.require_forward_param_sync = False


def is_settled(ddp: DistributedDataParallel) -> bool:
    """Whether the buckets have their final layout. With unused parameters to find they never change."""
    return bool(ddp._has_rebuilt_buckets) or (ddp.find_unused_parameters and not ddp.static_graph)


def settle(ddp: DistributedDataParallel, group: SwitchGroup, backward: Callable[[], None]) -> None:
    """Give the buckets their final layout without anyone else: what a joiner does before its first epoch.

    Args:
        ddp: constructed on `group`.
        group: in a local phase.
        backward: runs a forward and a backward pass on any batch of the usual shape. Gradients are dropped, and
            buffers put back; a random generator that it uses moves on.
    """
    assert group.generation is None, "settle while the group is local: the passes are this worker's own"
    buffers = [buffer.clone() for buffer in ddp.module.buffers()]
    ddp.require_backward_grad_sync = True
    for _ in range(2):
        backward()
        ddp.zero_grad(set_to_none=not ddp.gradient_as_bucket_view)
    with torch.no_grad():
        for buffer, before in zip(ddp.module.buffers(), buffers, strict=True):
            buffer.copy_(before)


def fingerprint(ddp: DistributedDataParallel) -> int:
    """Equal on members whose buckets agree: the same parameters, and the same of them in each bucket, in order."""
    # Bucket data is recorded in forward passes, one pass late; recording it again here costs microseconds.
    assert ddp.logger is not None
    ddp.logger.set_runtime_stats_and_log()
    data = ddp.logger._get_ddp_logging_data().strs_map
    parameters = [(name, tuple(p.shape), str(p.dtype)) for name, p in ddp.module.named_parameters() if p.requires_grad]
    text = repr((parameters, data.get("bucket_sizes"), data.get("rebuilt_per_bucket_param_indices")))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")
