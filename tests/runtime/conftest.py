"""Fixtures that several files share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from torch._C._distributed_c10d import TCPStore

from polyrhythm.runtime.server.shard import warm_up
from polyrhythm.runtime.wire.recovery.memory import RecoveryMemory
from tests.runtime.places import Place, place_in
from tests.runtime.shard_bench import Bench, MakeBench


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """Where ``polyrhythm run`` is called."""
    with place_in(tmp_path) as made:
        yield made


@pytest.fixture
def store() -> TCPStore:
    """Where members meet."""
    return TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def make() -> Iterator[MakeBench]:
    """Makes shards with their workers, and closes them."""
    warm_up()  # the first optimizer takes a second's imports, which no server shall spend in its answer
    benches: list[Bench] = []

    def bench(*arguments: object, **options: object) -> Bench:
        benches.append(Bench(*arguments, **options))  # type: ignore[arg-type]
        return benches[-1]

    yield bench
    for each in benches:
        each.close()


@pytest.fixture(autouse=True)
def recovery_memory_is_closed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test makes of it and leaves open is closed after it: a process of tests had 1,600 of them."""
    made = list[RecoveryMemory]()
    create, close = RecoveryMemory.create, RecoveryMemory.close

    def noted(parts: int = 1) -> RecoveryMemory:
        made.append(create(parts))
        return made[-1]

    def closed(memory: RecoveryMemory) -> None:
        made[:] = [other for other in made if other.descriptors != memory.descriptors]
        close(memory)

    monkeypatch.setattr(RecoveryMemory, "create", noted)
    monkeypatch.setattr(RecoveryMemory, "close", closed)
    yield
    for memory in made:
        close(memory)
