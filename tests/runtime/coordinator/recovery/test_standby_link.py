"""What a coordinator says to its standby, and which of them goes on, in virtual time."""

import random
from typing import Any

import pytest

from polyrhythm.errors import FrameError, UnreachableError
from polyrhythm.runtime.coordinator.recovery.standby_link import PIECE, StandbyLink, ranks_by_host
from polyrhythm.runtime.wire.recovery.memory import RecoveryMemory
from polyrhythm.runtime.wire.recovery.permission import standby_goes_on
from polyrhythm.runtime.wire.recovery.standby_protocol import (
    GotBytes,
    JobOver,
    KeepRecord,
    KeptRecord,
    Ping,
    Pong,
    RecordBytes,
    TookOver,
)
from tests.runtime.coordinator.recovery.guarded_job import (
    HANG_AFTER_S,
    End,
    FollowingStandby,
    GuardedServer,
    Time,
    connected,
)


class Guarded:
    """A link whose standby is played by the test."""

    def __init__(self, hosts: int = 2, unheard: tuple[int, ...] = ()) -> None:
        self.time, self.kept = Time(), 0
        self.server = GuardedServer(self.time, hosts, unheard.__contains__)
        self.channel, self.standby = connected(self.time)
        self.memory = RecoveryMemory.create()
        self.link = StandbyLink(self.channel, self.server, self.memory, self._keep)  # type: ignore[arg-type]
        self.channel.handler = self.link
        self.standby.handler = self
        self.time.run(0.1)

    def _keep(self) -> None:
        self.kept += 1

    def received(self, message: Any) -> None:
        """The standby says nothing by itself."""

    def destination(self, message: Any, about: Any) -> memoryview:
        return memoryview(bytearray(about.nbytes))

    def lost(self, reason: str) -> None:
        """Nor then."""

    def replicate(self, numbers: bytes = b"") -> int:
        number = self.memory.write(b"record", [memoryview(numbers)])
        self.link.replicate(number, 0)
        return number

    @property
    def last(self) -> Any:
        return next(message for message in reversed(self.channel.sent) if not isinstance(message, Ping))


def test_numbers_travel_in_pieces_each_of_which_is_confirmed() -> None:
    job = Guarded()
    number = job.replicate(bytes(2 * PIECE + 5))
    for start in (0, PIECE, 2 * PIECE):
        assert job.last == RecordBytes(0, start, 2 * PIECE + 5)
        job.link.received(GotBytes())
    assert isinstance(job.last, KeepRecord)
    assert job.kept == 0
    job.link.received(KeptRecord(number))
    assert job.kept == 1


def test_numbers_that_have_not_changed_do_not_travel_again() -> None:
    job = Guarded()
    job.link.received(GotBytes()) if job.replicate(b"numbers") else None
    job.link.received(KeptRecord(1))
    job.link.received(KeptRecord(job.replicate(b"numbers")))
    assert job.last.same_numbers
    job.replicate(b"other numbers")
    assert isinstance(job.last, RecordBytes)


def test_a_coordinator_that_ends_tells_workers_nothing_more() -> None:
    """What waits for the standby's word is for the workers of the standby only."""
    job = Guarded(hosts=2, unheard=(1,))
    job.replicate()
    job.time.run(2 * HANG_AFTER_S)
    assert job.server.gave_up
    assert job.kept == 0


def test_a_coordinator_that_hears_most_of_the_hosts_goes_on() -> None:
    job = Guarded(hosts=3, unheard=(1,))
    job.replicate()
    job.time.run(2 * HANG_AFTER_S)
    assert (job.server.gave_up, job.kept, job.link.gone) == ([], 1, True)


def test_hosts_of_a_record_that_is_on_its_way_are_heard_too() -> None:
    """The standby may have it already, and decide by it."""
    job = Guarded(hosts=3, unheard=(1, 3))
    job.link.received(KeptRecord(job.replicate()))
    job.server.channels[3] = GuardedServer(job.time, 4).channels[3]
    job.replicate()
    job.time.run(2 * HANG_AFTER_S)
    assert job.server.gave_up, "it hears 2 of 4 hosts"


def test_a_standby_that_answers_again_comes_back_for_the_records() -> None:
    """Nothing is kept there that was said meanwhile, so it is not to go on with what it has."""
    job = Guarded(hosts=3, unheard=(1,))
    job.time.run(HANG_AFTER_S + 1.0)
    assert job.link.gone
    pings = [message for message in job.channel.sent if isinstance(message, Ping)]
    job.link.received(Pong(pings[-1].number))
    assert job.channel.closed
    assert not job.link.ended, "it may still be cut off before it has come back"


@pytest.mark.parametrize("cut", [False, True])
def test_a_standby_whose_process_ends_will_not_take_over_and_one_that_is_cut_off_may(cut: bool) -> None:
    job = Guarded(hosts=2, unheard=(1,))
    job.replicate()
    job.channel.cut = cut
    job.channel.lose()
    assert job.kept == (not cut)
    job.time.run(2 * HANG_AFTER_S)
    assert bool(job.server.gave_up) == cut


def test_a_standby_that_is_awaited_by_a_following_coordinator_may_have_taken_over() -> None:
    for hosts, unheard in ((2, (1,)), (3, (1,)), (3, (1, 2))):
        time = Time()
        server = GuardedServer(time, hosts, unheard.__contains__)
        others = tuple((rank,) for rank in range(1, hosts))
        link = StandbyLink(None, server, RecoveryMemory.create(), lambda: None, others)
        time.run(2 * HANG_AFTER_S)
        assert bool(server.gave_up) == (2 * len(unheard) >= hosts)
        time.run(9 * HANG_AFTER_S)
        assert link.ended


def test_the_end_of_the_job_is_heard_before_the_coordinator_is_gone() -> None:
    """Also if a piece is on its way."""
    job = Guarded()
    job.replicate(bytes(PIECE))
    heard = list[Any]()

    def hear(message: Any) -> None:
        heard.append(message)
        if isinstance(message, JobOver):
            job.standby.close()

    job.received = hear  # type: ignore[method-assign]
    job.link.end()
    assert JobOver() in heard
    assert job.channel.closed


@pytest.mark.parametrize("message", [Ping(1), KeptRecord(7), JobOver()])
def test_what_a_standby_never_says_ends_its_connection(message: Any) -> None:
    with pytest.raises(FrameError, match="the standby sent"):
        Guarded().link.received(message)


def test_who_has_taken_over_is_believed() -> None:
    job = Guarded(hosts=3)
    job.link.received(TookOver())
    assert "goes on with its standby" in job.server.gave_up[0]


@pytest.mark.parametrize("seed", range(200))
def test_of_a_coordinator_and_its_standby_one_goes_on(seed: int) -> None:
    """Their link is cut, the standby is stopped, or the coordinator is killed and followed: at random moments.

    The hosts are parted at the same time, each of the others to one of the two sides.
    """
    chance = random.Random(seed)
    time, hosts = Time(), chance.randrange(2, 6)
    cut_s, heals_s = chance.uniform(0.0, 20.0), 20.0 + chance.choice((1.0, 3.0, 6.0, 1e9))
    with_first = {rank for rank in range(2, hosts) if chance.random() < 0.5}
    killed_s = cut_s + chance.uniform(-2.0, HANG_AFTER_S) if chance.random() < 0.5 else None
    delay_s = chance.choice((0.01, 0.3, 1.0))

    def is_up() -> bool:
        return not cut_s <= time.now_s < heals_s

    server = GuardedServer(time, hosts, lambda rank: not is_up() and rank not in with_first)
    memory, links = RecoveryMemory.create(), list[StandbyLink]()
    others = ranks_by_host(server.channels)[1]

    def meet(standby: Any) -> End:
        if not is_up() or server.gave_up:
            raise UnreachableError("nobody")
        ours, theirs = connected(time, lambda: chance.uniform(0.0, delay_s), is_up)
        if links:
            links.pop().drop()
        links.append(StandbyLink(ours, server, memory, lambda: None))  # type: ignore[arg-type]
        ours.handler, theirs.handler = links[-1], standby
        return theirs

    following = FollowingStandby(time, server.config, meet)

    def follow_coordinator() -> None:
        """It is killed; the next one awaits the standby."""
        if not server.gave_up:
            old = links.pop()
            end, old._channel, old.ended = old._channel, None, True
            links.append(StandbyLink(None, server, memory, lambda: None, others))
            if end is not None:
                end.close()

    def replicate() -> None:
        if links and not links[-1].gone and links[-1]._record is None:
            links[-1].replicate(memory.write(b"record"), 0)
        time.call_later(1.0, replicate)

    replicate()
    if killed_s is not None and killed_s > 1.0:
        time.call_later(killed_s, follow_coordinator)
    time.run(60.0)
    if following.took_over_s is not None and following.standby._newest is not None:
        parted = following.took_over_s < heals_s  # after that, the others are still with the first
        reached = {rank for rank in range(1, hosts) if parted and rank not in with_first}
        known = following.standby._newest[0].hosts
        goes_on = standby_goes_on(len(known) + 1, len([ranks for ranks in known if reached.intersection(ranks)]))
        assert not (goes_on and not server.gave_up)
    if heals_s > 60.0:
        assert server.gave_up or following.took_over_s is not None or links[-1].gone or links[-1].ended
