"""A job's processes on one host, from their start to their end: who fails is told, and the coordinator is followed."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from functools import partial
from types import FrameType

from polyrhythm.errors import PolyrhythmError, UnreachableError
from polyrhythm.lines import say
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.launch.forked import RunningProcess, end
from polyrhythm.runtime.launch.preemption import LEFT, tell_ending
from polyrhythm.runtime.launch.rendezvous import CoordinatorStart
from polyrhythm.runtime.launch.restarts import Restarts
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.runtime.wire.recovery.removed import is_removed

LAST_S = 5.0
"""How long the coordinator, and the process that follows the job, may take to end after the last worker."""

BUSY = 3
"""So many times the silence of a worker that hangs is one of a coordinator that is only busy, when all is over here."""

GONE_S = 1.0
"""How soon a process that has been killed is known to be gone, after its connections."""


STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals on which a job ends. The last one says that the terminal is gone, and may come twice for that."""


class ProcessWatch:
    """Waits for a job's processes on this host, says who fails, and ends them on a signal: first the workers, who may
    still need the servers for a checkpoint. A second one, but for SIGHUP, ends all at once.

    Args:
        address: of the coordinator.
        coordinator: its process, or its standby's, if it is on this host.
        workers: by rank; a signal may come before they have all been started and put there.
        hang_after: seconds of silence after which the coordinator is given up.
        grace_s: how long the workers may take after a signal.
        elsewhere: whether it has workers on other hosts, for which it goes on after the last of these.
        watcher: the process that follows the job, if there is one; it ends by itself after the job.
        restarts: how workers that have died are started again; none: they are not.
        start: of the coordinator, and of another one if it is killed.
        group_size: processes of a worker, which end with each other.
    """

    def __init__(
        self,
        address: Address,
        coordinator: RunningProcess | None,
        workers: dict[int, RunningProcess],
        hang_after: float,
        grace_s: float,
        elsewhere: bool = False,
        watcher: "subprocess.Popen[bytes] | None" = None,
        restarts: Restarts | None = None,
        start: CoordinatorStart | None = None,
        group_size: int = 1,
    ) -> None:
        self._start, self._group_size = start, group_size
        self._restarts = restarts or Restarts(0, lambda rank, _: workers[rank])
        self._address = address
        self._coordinator = coordinator
        self._workers = workers
        self._watcher = watcher
        self._hang_after, self._grace_s, self._elsewhere = hang_after, grace_s, elsewhere
        self._silence, self._ending = "", False
        self._late, self._ended, self._unheard = set[int](), set[int](), dict[int, bool]()
        self._lock, self._telling = threading.Lock(), list[threading.Thread]()
        for number in STOP_SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
                signal.signal(number, self._interrupt)

    def wait(self) -> dict[int, int]:
        """Exit codes by rank; negative for a signal."""
        codes: dict[int, int] = {}
        ranks = {process.pid: rank for rank, process in self._workers.items()}
        while len(codes) < len(self._workers):
            pid, status = os.wait()
            if pid in ranks:
                rank, shown = ranks[pid], os.waitstatus_to_exitcode(status)
                code = self._restarts.meaning(self._local(rank), rank, shown)
                self._workers[rank].returncode = shown
                if self._start_again(rank, code, len(self._workers) - len(codes) - 1):
                    ranks[self._workers[rank].pid] = rank
                    continue
                codes[rank] = self._restarts.first_code(rank, code)
                self._tell(rank, code, shown, self._left(codes))
                if not self._end_group(rank, code, codes):
                    said = self._restarts.is_ours(self._local(rank), rank, code)
                    self._excuse(rank // self._group_size, said)
            elif self._coordinator is not None and pid == self._coordinator.pid:
                self._coordinator.returncode = os.waitstatus_to_exitcode(status)
                if not self._follow_coordinator(self._coordinator.returncode):
                    self._close()
                    self._end_latecomers(codes)
        self._end_coordinator()
        self._close()
        if self._watcher is not None:
            end(self._watcher, LAST_S)
        return codes

    def _end_coordinator(self) -> None:
        """All workers of this host are through."""
        coordinator, start = self._coordinator, self._start
        stands_by = coordinator is not None and coordinator.returncode is None and start is not None and start.waits
        if coordinator is None or stands_by:  # it is elsewhere
            for telling in self._telling:
                telling.join()
        if coordinator is None:
            return
        if stands_by:
            coordinator.terminate()  # nobody needs a standby here
            coordinator.wait()
            return
        self._await_others(coordinator)
        assert self._coordinator is not None
        if end(self._coordinator, LAST_S):
            late = f"the coordinator has not ended within {LAST_S:g} s of the last worker; it"
            say(f"{f'{self._silence}; the coordinator' if self._silence else late} is ended")

    def _left(self, codes: dict[int, int]) -> int:
        """Workers all of whose processes are there, and none about to end."""
        size = self._group_size
        ending = {rank for rank in self._workers if self._restarts.is_ending(self._local(rank), rank)}
        return len({rank // size for rank in self._workers} - {rank // size for rank in codes.keys() | ending})

    def _end_group(self, rank: int, code: int, codes: dict[int, int]) -> bool:
        """Whether others of its group are there, who cannot go on without a process that has failed."""
        first = rank - rank % self._group_size
        others = [one for one in range(first, first + self._group_size) if one not in codes]
        if code and code != LEFT:
            self._ended |= {*others}
            for other in others:
                self._workers[other].kill()
        return bool(others)

    def _follow_coordinator(self, code: int) -> bool:
        """Whether another coordinator takes the place of one that was killed; if not, workers wait for none."""
        start = self._start
        if start is None or code >= 0 or self._ending or (following := start.again()) is None:
            return False
        with self._lock:
            self._coordinator, self._silence = following, ""
            unheard, self._unheard = self._unheard, {}
        who = "the standby" if start.waits else "the coordinator"
        say(f"{who} {ending(code)}; it is started again ({start.made} of {start.most})")
        for rank, said in unheard.items():
            self._excuse(rank, said)
        return True

    def _close(self) -> None:
        if self._start is not None:
            self._start.close()

    def _start_again(self, rank: int, code: int, left: int) -> bool:
        """Whether a worker that has died gets a new process, while others hold the job's state."""
        gone = self._coordinator is not None and self._coordinator.returncode is not None
        needed = not (self._ending or gone or is_removed(rank)) and bool(left or self._elsewhere)
        if not (needed and self._restarts.allow(rank, code)):
            return False
        self._workers[rank] = self._restarts.again(rank, code)
        say(f"rank {rank} {ending(code)}; it is started again ({self._restarts.made} of {self._restarts.most})")
        return True

    def _end_latecomers(self, codes: dict[int, int]) -> None:
        """The coordinator has ended in good order: whoever was started again and is still to join comes too late."""
        over = self._coordinator is not None and not self._coordinator.returncode
        self._late = self._restarts.to_join - codes.keys() if over else set()
        for rank in sorted(self._late):
            say(f"rank {rank} was started again, and the job has ended before it joined")
            self._workers[rank].kill()

    def _await_others(self, coordinator: RunningProcess) -> None:
        """Until the workers of other hosts are through, which the coordinator knows as long as it answers."""
        while self._elsewhere and coordinator.returncode is None:
            try:
                code = coordinator.wait(GONE_S if self._silence else self._hang_after)
            except subprocess.TimeoutExpired:
                if self._silence:
                    return
                self._ask(lambda: steer.status(self._address, BUSY * self._hang_after), coordinator)
            else:
                if self._follow_coordinator(code):
                    coordinator = self._coordinator or coordinator

    def _ask(self, question: Callable[[], object], asked: RunningProcess | None) -> bool:
        """Talk to the coordinator, which may be about to end, until it has once not answered; whether it has heard."""
        try:
            question()
        except UnreachableError as error:
            with self._lock:
                if self._coordinator is asked:
                    self._silence = str(error)
            return False
        except PolyrhythmError:
            pass
        return True

    def _excuse(self, rank: int, said: bool) -> None:
        """Nobody need wait for a worker that has ended, and may have said why, in case it never joined the job.

        Told in a thread: while the coordinator is silent the ends of others are awaited.
        """
        if self._coordinator is None or self._coordinator.returncode is None:
            self._telling.append(threading.Thread(target=self._tell_absent, args=(rank, said), daemon=True))
            self._telling[-1].start()

    def _tell_absent(self, rank: int, said: bool) -> None:
        asked, told = self._coordinator, partial(steer.absent, self._address, rank, self._hang_after, said)
        if not self._silence and self._ask(told, asked):
            return
        with self._lock:
            if self._coordinator is asked:
                self._unheard[rank] = said
                return
        self._excuse(rank, said)

    def _local(self, rank: int) -> int:
        return rank - min(self._workers)

    def _tell(self, rank: int, code: int, shown: int, left: int) -> None:
        """`shown` is its exit status, and `code` what that means."""
        if code == LEFT:
            say(f"{self._name(rank)} was asked to end, and has left{going_on(rank, left)}")
        elif code and not self._has_said(rank, code):
            whole = ", and its group ends with it" if self._group_size > 1 else ""
            say(f"{self._name(rank)} {ending(shown)}{whole}{going_on(rank, left)}")

    def _has_said(self, rank: int, code: int) -> bool:
        """Whether the coordinator or the worker has said why it has ended, or this launcher."""
        return rank in self._late | self._ended or self._restarts.is_ours(self._local(rank), rank, code)

    def _name(self, rank: int) -> str:
        worker, place = divmod(rank, self._group_size)
        return f"rank {worker}" if self._group_size == 1 else f"process {place} of rank {worker}"

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        workers = list(self._workers.values())
        others = [process for process in (self._coordinator, self._watcher) if process is not None]
        if self._ending and number == signal.SIGHUP:
            return
        if self._ending:
            for process in [*workers, *others]:
                process.kill()
            raise SystemExit(128 + number)
        self._ending, deadline = True, time.monotonic() + self._grace_s
        name = signal.Signals(number).name
        say(f"{name}: workers have {self._grace_s:g} s to end; once more ends them at once")
        if number != signal.SIGINT:  # which the terminal has sent to the workers, too
            tell_ending("keeps")
            self._keep_state()
        tell_ending("over")
        for worker in workers:
            worker.terminate()
        for worker in workers:
            end(worker, max(0.0, deadline - time.monotonic()))
        for process in others:
            process.terminate()
        for process in others:
            end(process, LAST_S)
        raise SystemExit(128 + number)

    def _keep_state(self) -> None:
        """Have a checkpoint taken, if the job is under way, keeps any and has its coordinator here."""
        if self._start is None or self._start.waits or self._silence:
            return
        steer.keep_last(steer.at(self._address.job, token=self._address.token), self._grace_s / 2)


def going_on(rank: int, left: int) -> str:
    """How many workers of this host are still there without this rank.

    >>> going_on(1, 0), going_on(1, 1), going_on(1, 2)
    ('', '; 1 worker goes on', '; 2 workers go on')
    >>> going_on(0, 1)
    '; 1 worker goes on, and a file that the script writes on rank 0 only stays as it is'
    """
    if not left:
        return ""
    unwritten = ", and a file that the script writes on rank 0 only stays as it is" if rank == 0 else ""
    return f"; {left} worker{'s go' if left > 1 else ' goes'} on{unwritten}"


def ending(code: int) -> str:
    """How a process has ended.

    >>> ending(-9), ending(1)
    ('was killed by SIGKILL', 'failed with exit code 1')
    """
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
