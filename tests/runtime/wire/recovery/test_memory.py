"""What a coordinator has written is whole for the next one, wherever the first was killed."""

import os
import signal

from polyrhythm.runtime.wire.recovery.memory import RecoveryMemory


def test_nothing_is_there_at_first() -> None:
    memory = RecoveryMemory.create()
    assert memory.read() is None
    assert (memory.samples, memory.deaths) == (0, 0)


def test_the_newest_of_many_records_is_read() -> None:
    memory = RecoveryMemory.create()
    for number in range(1, 8):
        memory.write(b"x" * number, [memoryview(b"ab"), memoryview(bytes(number))])
        kept = RecoveryMemory(memory.descriptors).read()
        assert kept is not None
        assert kept == (number, b"x" * number, bytearray(b"ab" + bytes(number)))


def test_who_is_killed_while_it_writes_leaves_the_record_before() -> None:
    """At each call of the kernel that a record takes: its place is void, the parts, its head."""
    for calls in range(5):
        memory = RecoveryMemory.create()
        memory.write(b"first")
        memory.write(b"second")
        child = os.fork()
        if not child:
            write_and_die(memory, calls)
        os.waitpid(child, 0)
        kept = memory.read()
        assert kept is not None
        assert kept.record == (b"second" if calls < 4 else b"third")


def write_and_die(memory: RecoveryMemory, calls: int) -> None:
    """In a process of its own: write one more, and die after so many calls."""
    write, left = os.pwrite, calls

    def counted(*arguments: object) -> int:
        nonlocal left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return write(*arguments)  # type: ignore[arg-type]

    os.pwrite = counted
    memory.write(b"third", [memoryview(b"numbers")])
    os.kill(os.getpid(), signal.SIGKILL)


def test_counts_are_kept_beside_the_records() -> None:
    memory = RecoveryMemory.create()
    memory.count(17)
    assert memory.count_death() == 1
    memory.count(19)
    memory.write(b"record")
    assert (memory.samples, memory.deaths) == (19, 1)


def test_a_process_that_follows_another_one_knows_of_its_death() -> None:
    """Also where no record was written before."""
    memory = RecoveryMemory.create()
    memory.begin()
    assert memory.deaths == 0
    following = RecoveryMemory(memory.descriptors)
    following.begin()
    assert (following.deaths, following.read()) == (1, None)


def test_who_is_excused_once_stays_so() -> None:
    memory = RecoveryMemory.create()
    memory.begin()
    for rank in (3, 0, 3):
        memory.excuse(rank)
    memory.count(5)
    assert RecoveryMemory(memory.descriptors).excused == (3, 0)


def test_a_record_counts_when_all_its_parts_are_there() -> None:
    """One whose parts are still on their way leaves the one before it, with its parts."""
    memory = RecoveryMemory.create(parts=3)
    for name in (b"first", b"second"):
        number = memory.write(name, parts=2)
        for part in (1, 2):
            memory.write_part(part, number, name + b" %d" % part, [memoryview(b"numbers")])
    unfinished = memory.write(b"third", parts=2)
    memory.write_part(1, unfinished, b"third 1")
    for _ in range(2):  # the next coordinator finds that, and writes in its place
        kept = RecoveryMemory(memory.descriptors).read()
        assert kept is not None
        assert kept.record == b"second"
        assert [memory.read_part(part, kept.number).record for part in (1, 2)] == [b"second 1", b"second 2"]
        unfinished = memory.write(b"fourth", parts=2)
    memory.write_part(2, unfinished, b"fourth 2")
    memory.write_part(1, unfinished, b"fourth 1")
    assert (kept := memory.read()) is not None
    assert kept.record == b"fourth"


def test_a_record_without_parts_follows_one_with_them() -> None:
    """As when workers have the parameters, and no longer the servers."""
    memory = RecoveryMemory.create(parts=2)
    number = memory.write(b"on servers", parts=1)
    memory.write_part(1, number, b"part")
    memory.write(b"on workers")
    assert (kept := memory.read()) is not None
    assert kept.record == b"on workers"


def test_who_takes_over_goes_on_counting() -> None:
    memory = RecoveryMemory.create()
    assert not memory.begun
    memory.take_over(samples=40, deaths=2)
    following = RecoveryMemory(memory.descriptors)
    assert (following.begun, following.samples, following.deaths) == (True, 40, 2)


def test_another_training_finds_no_record_of_the_one_before() -> None:
    memory = RecoveryMemory.create()
    memory.write(b"record")
    memory.count(17)
    memory.count_death()
    memory.excuse(2)
    memory.begin_again([1])
    assert memory.read() is None
    assert (memory.samples, memory.deaths, memory.trainings, memory.excused) == (0, 1, 1, (1,))
    memory.count(3)
    assert memory.trainings == 1
