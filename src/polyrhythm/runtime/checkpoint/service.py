"""The checkpoints of a job in its coordinator's process: when one is taken, and what the job goes on from."""

import logging
from collections.abc import Callable, Container
from typing import Any, Protocol

from polyrhythm.core import Policy
from polyrhythm.errors import UsageError
from polyrhythm.policies import parse_loaded_policy, parse_policy
from polyrhythm.runtime.checkpoint.keeper import PROGRESS_S, CheckpointKeeper
from polyrhythm.runtime.checkpoint.manifest import JobSnapshot, Manifest, Saved
from polyrhythm.runtime.checkpoint.snapshots import Snapshots
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.setting_values import seconds

log = logging.getLogger(__name__)


class Counts(Protocol):
    epoch: int
    samples: int
    script: int | None

    @property
    def members(self) -> Container[int]: ...


class SavingCoordinator(Protocol):
    """Who brings the workers to a stop; see `polyrhythm.runtime.coordinator.coordinator.Coordinator`."""

    snapshots: Snapshots

    @property
    def job(self) -> Counts: ...

    def plan(self, policy: Policy[Any], epochs: int) -> None: ...

    def resume(self, snapshot: JobSnapshot) -> None: ...

    def save(self) -> None: ...


class JobCheckpoints:
    """What a coordinator's process does about checkpoints; nothing, if the job has no folder for them.

    Args:
        loop: of the process.
        coordinator: of the job.
        act: calls a method of the coordinator, which may find that the policy is wrong.
    """

    def __init__(self, loop: Loop, coordinator: SavingCoordinator, act: Callable[[Callable[[], None]], None]) -> None:
        self._loop, self._coordinator, self._act = loop, coordinator, act
        self._keeper: CheckpointKeeper | None = None
        self._refusal = ""
        self._kept_at_all = False
        self._asking: list[Callable[[str], None]] = []
        self._due: dict[int, list[Callable[[str], None]]] = {}
        """Who has asked for a checkpoint at which all are yet to stand, and who for that of a number."""

    def open(self, config: JobConfig, under_way: bool) -> None:
        """A job that is under way, whose coordinator has died, goes on if its folder is out of reach just now."""
        self._kept_at_all = config.checkpoint is not None
        if config.checkpoint is None or self._keeper is not None or self._refusal:
            return
        try:
            self._keeper = CheckpointKeeper(config, self._settled)
        except (UsageError, OSError) as error:
            if under_way:
                log.warning("%s; the job goes on without, and tries again every %s", error, config.every)
                self._loop.call_later(seconds(config.every), lambda: self._open_again(config))
            else:
                self._refusal = str(error)
                log.error("%s", error)  # noqa: TRY400 (one line for the user)

    def _open_again(self, config: JobConfig) -> None:
        try:
            self._keeper = CheckpointKeeper(config, self._settled)
        except (UsageError, OSError):
            self._loop.call_later(seconds(config.every), lambda: self._open_again(config))
        else:
            self.go_on(config)

    def require(self) -> None:
        """A worker wants to take part."""
        if self._refusal:
            raise UsageError(self._refusal)

    def resume(self, config: JobConfig) -> None:
        """The config is complete: go on under the checkpoint's policy, and take the next one in time."""
        keeper = self._keeper
        if keeper is None:
            return
        if keeper.found is not None:
            policy = policy_to_resume(keeper.found.manifest, config)
            self._coordinator.plan(policy, config.epochs)
            self._coordinator.resume(keeper.found.manifest.snapshot)
            keeper.tell_resumption(policy.spec)
        self.go_on(config)

    def go_on(self, config: JobConfig) -> None:
        """Take the next checkpoint in time, also where a coordinator before this one has taken others."""
        keeper = self._keeper
        if keeper is None:
            return
        keeper.complete(config)
        self._coordinator.snapshots.count_from(keeper.latest)
        self._loop.call_later(keeper.every_s, self._save)
        self._loop.call_later(PROGRESS_S, self._note)

    @property
    def for_newcomer(self) -> tuple[str, int | None]:
        """Of a worker that joins now: the checkpoint that it reads, and from what its script counts epochs.

        No checkpoint where others have the state, and neither at a start; both are as in `JobInfo`.
        """
        found = self._keeper.found if self._keeper is not None else None
        others_have = self._coordinator.job.epoch >= 0
        return "" if found is None or others_have else str(found.path), self.counted_from

    @property
    def counted_from(self) -> int | None:
        """What the script's loop calls the epoch 0 of a job that is under way, or goes on from a checkpoint."""
        job, keeper = self._coordinator.job, self._keeper
        if job.epoch >= 0 or keeper is None or keeper.found is None:
            return job.script
        return keeper.found.manifest.snapshot.position.ready.script

    def keep(self, snapshot: JobSnapshot) -> None:
        """All workers stand at a checkpoint, and one of them writes."""
        if self._keeper is not None:
            self._due[snapshot.number], self._asking = self._asking, []
            self._keeper.keep(snapshot)
            if snapshot.saver not in self._coordinator.job.members:  # the phase has begun without it
                self._keeper.lost(snapshot.saver)

    def saved(self, worker: int, message: Saved) -> None:
        """From any thread: a worker has written, or could not."""
        keeper = self._keeper
        if keeper is not None:
            snapshots = self._coordinator.snapshots
            self._loop.call_from_thread(lambda: keeper.saved(worker, message, snapshots.number))

    def take(self, tell: Callable[[str], None], last: bool = False) -> None:
        """Take a checkpoint that has all that is processed by now.

        Args:
            tell: is called once it is kept, or could not be, with the reason.
            last: whether one will do that is being kept as another one has asked: all who are asked to end ask, some a
                moment later, and those before them would leave in the midst of a second one.

        Raises:
            UsageError: if there is nothing to be kept, or nowhere.
        """
        if self._keeper is None and self._kept_at_all:
            raise UsageError("its folder of checkpoints is out of reach; ask again when it is there")
        if self._keeper is None:
            raise UsageError("it keeps no checkpoints; start it with --checkpoint DIR")
        if self._coordinator.snapshots.of_script:
            raise UsageError("its script keeps snapshots of its own, with which the job's checkpoints begin")
        if self._coordinator.job.epoch < 0:
            raise UsageError("it has not begun to train; ask again in a second")
        under_way = max(self._due, default=None) if last else None
        if under_way is not None and self._due[under_way]:
            self._due[under_way].append(tell)
            return
        self._asking.append(tell)
        self._save_if_asked()

    def _save_if_asked(self) -> None:
        if self._asking and self._keeper is not None and not self._keeper.busy:
            self._act(self._coordinator.save)

    def _settled(self, number: int, trouble: str) -> None:
        """From any thread: a checkpoint is kept, or could not be."""
        self._loop.call_from_thread(lambda: self._settle(number, trouble))

    def _settle(self, number: int, trouble: str) -> None:
        for tell in self._due.pop(number, []):
            tell(trouble)
        self._save_if_asked()

    def lost(self, worker: int) -> None:
        if self._keeper is not None:
            self._keeper.lost(worker)

    def close(self) -> None:
        if self._keeper is not None:
            self._keeper.close()

    def _save(self) -> None:
        assert self._keeper is not None, "it has been opened"
        if not self._keeper.busy and self._coordinator.job.epoch >= 0:
            self._act(self._coordinator.save)
        self._loop.call_later(self._keeper.every_s, self._save)

    def _note(self) -> None:
        assert self._keeper is not None, "it has been opened"
        self._keeper.note(self._coordinator.job.samples)
        self._loop.call_later(PROGRESS_S, self._note)


def policy_to_resume(manifest: Manifest, config: JobConfig) -> Policy[Any]:
    """The policy of a checkpoint, or that of the config if another one is asked for than when it was made."""
    asked, kept = parse_policy(config.policy), manifest.snapshot.policy
    if kept == asked.spec:
        return asked
    if manifest.asked != config.policy:
        log.info("policy %s holds; %s of the checkpoint is overruled", asked.spec, kept)
        return asked
    try:
        return parse_policy(kept) if config.allow_policy_files else parse_loaded_policy(kept)
    except UsageError as error:
        log.warning("policy %s holds; %s of the checkpoint cannot be taken: %s", asked.spec, kept, error)
        return asked
