"""The coordinator's side of checkpoints, with files: when one is due, when it is whole, and what cannot be written."""

import logging
import queue
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec

from polyrhythm.errors import UsageError
from polyrhythm.runtime.checkpoint.folder import CheckpointFolder, WholeCheckpoint
from polyrhythm.runtime.checkpoint.manifest import JobSnapshot, Manifest, Saved
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.setting_values import seconds

log = logging.getLogger(__name__)

PROGRESS = ".progress"
"""File of what was made since the newest checkpoint, for a word on it after a kill."""

PROGRESS_S = 0.5
LAST_S = 10.0
"""How long a job's end waits for a disk."""


class Progress(msgspec.Struct, frozen=True):
    """Samples that the job had processed when it was last looked at, after the checkpoint of this number."""

    number: int
    samples: int


class CheckpointKeeper:
    """Keeps the checkpoints of one job. Nothing here touches a disk but a thread of its own, once the job runs.

    Args:
        config: of the job; it has a folder.
        settled: is called, from any thread, when the checkpoint of a number is kept, or could not be, with the reason.

    Attributes:
        found: the checkpoint that the job goes on from; None if there is none.
    """

    def __init__(self, config: JobConfig, settled: Callable[[int, str], None]) -> None:
        assert config.checkpoint is not None, "a job without a folder keeps nothing"
        self._config, self._every_s, self._settled = config, seconds(config.every), settled
        self._folder = CheckpointFolder(Path(config.checkpoint), config.keep)
        begun = self._folder.clean()  # perhaps a worker is still at it, whose word must be of no other checkpoint
        self.found = self._newest()
        self.latest = max((begun, *self._folder.numbers()))
        self._newest_number = self.found.manifest.snapshot.number if self.found else 0
        self._samples_then = self._samples = self.found.manifest.snapshot.position.samples if self.found else 0
        self._repeated = self._lost_samples()
        self._snapshots: dict[int, JobSnapshot] = {}
        self._early: tuple[int, Saved] | None = None
        """A worker, and what it has written or could not before all stood at that checkpoint."""
        self._said = ""
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="polyrhythm-checkpoints", daemon=True)
        self._thread.start()

    def _newest(self) -> WholeCheckpoint | None:
        found = self._folder.newest(log.warning)
        if found is None and self._folder.numbers():
            raise UsageError(
                f"no checkpoint in {self._folder.path} is whole; give another --checkpoint, or move them away to start "
                "anew"
            )
        return found

    def _lost_samples(self) -> int:
        try:
            progress = msgspec.json.decode((self._folder.path / PROGRESS).read_bytes(), type=Progress)
        except (OSError, msgspec.DecodeError):
            return 0
        return max(0, progress.samples - self._samples_then)

    def tell_resumption(self, policy: str) -> None:
        """Say from where the job goes on, under which policy, and what is made again."""
        if self.found is None:
            return
        path, manifest = self.found
        if manifest.snapshot.script:
            log.info("goes on after checkpoint %s: %s, policy %s", path, manifest.where, policy)
            return
        again = f"at least {self._repeated} samples that were" if self._repeated else "what was"
        verb = "are" if self._repeated else "is"
        log.info(
            "goes on from checkpoint %s: %s, policy %s; %s made of its rest, in %g s at most, %s made again",
            *(path, manifest.where, policy, again, self._every_s, verb),
        )

    @property
    def every_s(self) -> float:
        return self._every_s

    @property
    def busy(self) -> bool:
        return bool(self._snapshots)

    def keep(self, snapshot: JobSnapshot) -> None:
        """All workers stand at a checkpoint, and one of them writes; of a script nobody does."""
        self._snapshots[snapshot.number] = snapshot
        early, self._early = self._early, None
        if snapshot.script:
            self.saved(snapshot.saver, Saved(snapshot.number))
        elif early is not None and early[1].number == snapshot.number:
            self.saved(*early)
        elif early is not None:  # not all came to stand there
            self._tasks.put(partial(self._folder.discard, early[1].number))

    def complete(self, config: JobConfig) -> None:
        self._config = config

    def saved(self, worker: int, message: Saved, begins: int = 0) -> None:
        """A worker has written a checkpoint, or could not; perhaps that with which the phase at hand `begins`."""
        config, snapshot = self._config, self._snapshots.get(message.number)
        if snapshot is None and message.number == begins:
            self._early = worker, message
        if snapshot is None or snapshot.saver != worker:
            return
        del self._snapshots[message.number]
        if message.trouble:
            self._fail(message.number, message.trouble)
            return
        manifest = Manifest(snapshot, message.files, config.job, config.workers, config.policy, time.time())
        self._tasks.put(partial(self._commit, manifest))

    def lost(self, worker: int) -> None:
        """A worker is gone, perhaps the one that was writing."""
        for number in [number for number, snapshot in self._snapshots.items() if snapshot.saver == worker]:
            del self._snapshots[number]
            self._fail(number, f"rank {worker}, which was writing it, is gone")

    def note(self, samples: int) -> None:
        if samples != self._samples:
            self._samples = samples
            self._tasks.put(partial(self._write_progress, Progress(self._newest_number, samples)))

    def close(self) -> None:
        """Finish what can be finished soon."""
        self._tasks.put(None)
        self._thread.join(LAST_S)
        self._folder.close()

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()

    def _commit(self, manifest: Manifest) -> None:
        number = manifest.snapshot.number
        try:
            if self._folder.hold():
                log.warning(
                    "%s was removed while the job runs; it is made again, without what it had", self._folder.path
                )
            path = self._folder.commit(manifest)
        except (OSError, UsageError) as error:
            self._fail(number, getattr(error, "strerror", None) or str(error))
            return
        self._newest_number, self._said = number, ""
        log.info("checkpoint %s: %s, policy %s", path, manifest.where, manifest.snapshot.in_force)
        self._settled(number, "")

    def _fail(self, number: int, reason: str) -> None:
        """Say it once for each reason; the job goes on."""
        self._tasks.put(partial(self._folder.discard, number))
        if reason != self._said:
            self._said = reason
            newest = (
                f"the newest is that of number {self._newest_number}" if self._newest_number else "there is none yet"
            )
            log.warning(
                "checkpoint %d cannot be written to %s: %s; the job goes on, %s",
                *(number, self._folder.path, reason, newest),
            )
        self._settled(number, f"checkpoint {number} cannot be written: {reason}")

    def _write_progress(self, progress: Progress) -> None:
        aside = self._folder.path / f"{PROGRESS}.new"
        try:
            aside.write_bytes(msgspec.json.encode(progress))
            aside.replace(self._folder.path / PROGRESS)
        except OSError:
            return  # it is only for a word
