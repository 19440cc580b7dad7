"""What two ranks tell about their data, compared: a job whose ranks do not agree loses samples, and nobody sees it."""

from collections.abc import Sequence

from polyrhythm.runtime.wire.protocol import Ready
from polyrhythm.runtime.wire.shard_protocol import NOT_IN_SHARES
from polyrhythm.training.data.fingerprint import alike, probes

REMEDIES = {
    "subset": "a random split differs from rank to rank unless torch.manual_seed comes before it",
    "labels": "give the same labels, in the same order, on every rank",
}
"""Where it is not plain what to do, by the name of the term."""

SAME_READING = "all workers must run the same script, and read equally many mini-batches before the script's first step"


def disagreement(own: Ready, other: Ready, rank: int) -> str:
    """What a rank says otherwise than another, of number `rank`, for the same epoch; empty if they agree.

    >>> disagreement(Ready(0, 60, 2, terms={"seed": 1}), Ready(0, 60, 2, terms={"seed": 0}), rank=3)
    'its loader has seed=1, that of rank 3 has seed=0; give the same seed on every rank'
    """
    if own.own != other.own:
        itself, dealt = "for itself", "as the job deals it out"
        here, there = (itself, dealt) if own.own else (dealt, itself)
        return f"it reads its data {here}, and rank {rank} {there}; {SAME_READING}"
    if own.dataset_samples != other.dataset_samples and not own.own:
        return (
            f"its data set has {own.dataset_samples} samples, that of rank {rank} has {other.dataset_samples}; "
            "all workers must load the same data set"
        )
    for name in {**other.terms, **own.terms}:
        ours, theirs = own.terms.get(name), other.terms.get(name)
        if ours != theirs:
            remedy = REMEDIES.get(name, f"give the same {name} on every rank")
            return f"its loader has {name}={ours}, that of rank {rank} has {name}={theirs}; {remedy}"
    if (own.shards, own.rotate) != (other.shards, other.rotate):
        return f"its loader cuts the data set otherwise than that of rank {rank}; give all the same partition"
    return different_sample(own, other, rank)


def different_sample(own: Ready, other: Ready, rank: int) -> str:
    """Which of the samples that were looked at is another one."""
    remedy = "all workers must load the same data, in the same order"
    if len(own.content) != len(other.content):
        return f"a sample of its data set has other tensors than on rank {rank}; {remedy}"
    looked_at = probes(own.dataset_samples)
    for place, (ours, theirs) in enumerate(zip(own.content, other.content, strict=True)):
        if not alike(ours, theirs):
            sample = looked_at[place * len(looked_at) // len(own.content)]
            return f"sample {sample} of its data set is {ours:g} in the mean, on rank {rank} {theirs:g}; {remedy}"
    return ""


def why_undealt(ranks: Sequence[Ready], shared: bool) -> str:
    """Why the mini-batches of these ranks cannot be unequal; empty if they can. `shared`: all read from one order.

    >>> why_undealt([Ready(0, 60, 4), Ready(0, 60, 5)], shared=True)
    'the ranks ask for [4, 5]; give all the same batch_size'
    """
    if not shared:
        return "the workers read shards of their own; use partition='shared'"
    if len(sizes := {one.batch_size for one in ranks}) != 1:
        return f"the ranks ask for {sorted(sizes)}; give all the same batch_size"
    return next((str(term) for one in ranks if (term := one.terms.get(NOT_IN_SHARES))), "")
