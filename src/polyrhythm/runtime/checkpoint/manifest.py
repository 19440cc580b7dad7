"""What a checkpoint says of its job: where it stands, under which policy, and which files belong to it."""

import hashlib
from typing import Final

import msgspec

from polyrhythm.core.workload import WorkloadState
from polyrhythm.errors import UsageError
from polyrhythm.runtime.checkpoint.tensor_file import FileMark
from polyrhythm.runtime.wire.protocol import ControlMessage, Natural, Ready

FORMAT: Final = 1
"""Of the manifest; another one is not read."""


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a job stands between two phases: what of its work is in the parameters.

    `ready` is what a worker has said of the epoch's data; a job that goes on must have the same. Of data of their own
    workers would have had so many samples `before` its first epoch, and it was past those `begun` as this one began.
    """

    epoch: int
    first_epoch: int
    samples: int
    skipped_samples: int
    version: int
    workload: WorkloadState
    ready: Ready
    before: int = 0
    begun: int = 0

    @property
    def left(self) -> int:
        """Samples of the epoch that are still to be processed."""
        return self.workload.left


class JobSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the coordinator knows of a checkpoint.

    `policy` is what was chosen for the whole job, `in_force` the part of it that runs, `state` its state as text, and
    `streams` are the random streams of the workers, by rank. `known` is the state of a policy that watches the job and
    chooses what is in force. `saver` writes the tensors. Of an unmodified `script`
    there are none, as it has snapshots of its own.
    """

    number: int
    position: Position
    policy: str
    in_force: str
    state: str
    streams: dict[int, bytes]
    saver: int = 0
    script: bool = False
    known: str = ""


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint but for its tensors; `asked` is the policy that the job was started with."""

    snapshot: JobSnapshot
    files: dict[str, FileMark]
    job: str
    workers: int
    asked: str
    made_at: float
    format: int = FORMAT

    @property
    def where(self) -> str:
        """The place in a line.

        The epoch's samples are those that are in the parameters.
        """
        position = self.snapshot.position
        total = position.ready.dataset_samples
        return f"epoch {position.epoch}, {total - position.left} of {total} samples"


class Saved(ControlMessage):
    """A worker has written the tensors of this checkpoint, or could not, because of some `trouble`."""

    number: Natural
    files: dict[str, FileMark] = {}  # noqa: RUF012 (msgspec copies it)
    trouble: str = ""


def encode_manifest(manifest: Manifest) -> bytes:
    """The manifest, after its digest."""
    body = msgspec.json.encode(manifest)
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def decode_manifest(data: bytes) -> Manifest:
    """The manifest of these bytes."""
    digest, _, body = data.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise UsageError("its manifest is cut or changed")
    try:
        made = msgspec.json.decode(body, type=Manifest)
    except (msgspec.DecodeError, ValueError) as error:
        raise UsageError(f"its manifest is of another version: {error}") from None
    if made.format != FORMAT:
        raise UsageError(f"its format is {made.format}, and this version reads {FORMAT}")
    return made
