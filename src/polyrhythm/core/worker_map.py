"""A persistent map from worker to value: an update copies O(log n) small tuples and leaves the old map as it was.

Policies that remember something per worker keep it here: a state stays a frozen value, and 10,000 workers cost no
more per event than ten.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

WIDTH = 32
"""Slots of one node."""

ABSENT: Any = None
EMPTY = (ABSENT,) * WIDTH

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class WorkerMap(Generic[Item]):
    """Maps workers to values that are not None.

    >>> clocks = WorkerMap().set(3, "c").set(70, "x")
    >>> clocks.get(3), clocks.get(4), clocks.remove(3).get(3), len(clocks), list(clocks.items())
    ('c', None, None, 2, [(3, 'c'), (70, 'x')])
    """

    root: tuple[Any, ...] = EMPTY
    capacity: int = WIDTH
    size: int = 0

    def get(self, worker: int) -> Item | None:
        """Value of `worker`, or None."""
        if worker >= self.capacity:
            return None
        if self.capacity == WIDTH:
            return self.root[worker]  # type: ignore[no-any-return]
        node, span = self.root, self.capacity // WIDTH
        while span >= 1:
            node = node[worker // span % WIDTH]
            if node is ABSENT:
                return None
            span //= WIDTH
        return node  # type: ignore[return-value]

    def set(self, worker: int, value: Item) -> "WorkerMap[Item]":
        """This map with `value` for `worker`."""
        root, capacity = self.root, self.capacity
        if worker < capacity == WIDTH:
            # One node, as with most clusters: what follows would come to the same, more slowly.
            slots = list(root)
            grown, slots[worker] = self.size + (slots[worker] is ABSENT), value
            return WorkerMap(tuple(slots), capacity, grown)
        if worker < capacity == WIDTH * WIDTH:
            top, (child, slot) = list(root), divmod(worker, WIDTH)
            slots = list(top[child] or EMPTY)
            grown, slots[slot] = self.size + (slots[slot] is ABSENT), value
            top[child] = tuple(slots)
            return WorkerMap(tuple(top), capacity, grown)
        while worker >= capacity:
            root, capacity = (root if self.size else ABSENT, *EMPTY[1:]), capacity * WIDTH
        grown = self.size + (self.get(worker) is None)
        return WorkerMap(replaced(root, worker, capacity // WIDTH, value) or EMPTY, capacity, grown)

    def set_all(self, workers: Iterable[int], value: Item) -> "WorkerMap[Item]":
        """This map with `value` for each of `workers`."""
        result = self
        for worker in workers:
            result = result.set(worker, value)
        return result

    def map(self, change: Callable[[Item], Item]) -> "WorkerMap[Item]":
        """This map with what `change` makes of each value, which is not None."""
        return WorkerMap(changed(self.root, self.capacity // WIDTH, change), self.capacity, self.size)

    def remove(self, worker: int) -> "WorkerMap[Item]":
        """This map without `worker`; itself if it is not there."""
        if self.get(worker) is None:
            return self
        capacity = self.capacity
        if capacity == WIDTH:
            slots = list(self.root)
            slots[worker] = ABSENT
            return WorkerMap(tuple(slots), capacity, self.size - 1)
        root = replaced(self.root, worker, capacity // WIDTH, ABSENT) or EMPTY
        # Maps of equal content are equal, whoever was in them once.
        while capacity > WIDTH and root[1:] == EMPTY[1:]:
            root, capacity = root[0] or EMPTY, capacity // WIDTH
        return WorkerMap(root, capacity, self.size - 1)

    def items(self) -> Iterator[tuple[int, Item]]:
        """Workers and values in order of workers."""
        return walk(self.root, 0, self.capacity // WIDTH)

    def __iter__(self) -> Iterator[int]:
        return (worker for worker, _ in self.items())

    def __len__(self) -> int:
        return self.size

    def __contains__(self, worker: int) -> bool:
        return self.get(worker) is not None


def replaced(node: tuple[Any, ...] | None, worker: int, span: int, value: Any) -> tuple[Any, ...] | None:
    """`node` with the value of `worker` replaced, None if it is empty then; each slot covers `span` workers."""
    slots = list(node or EMPTY)
    slot = worker // span % WIDTH
    child = slots[slot] = value if span == 1 else replaced(slots[slot], worker, span // WIDTH, value)
    result = tuple(slots)
    return ABSENT if child is ABSENT and result == EMPTY else result


def changed(node: tuple[Any, ...], span: int, change: Callable[[Any], Any]) -> tuple[Any, ...]:
    """`node` with every value below it changed."""
    if span == 1:
        return tuple(ABSENT if child is ABSENT else change(child) for child in node)
    return tuple(ABSENT if child is ABSENT else changed(child, span // WIDTH, change) for child in node)


def walk(node: tuple[Any, ...], base: int, span: int) -> Iterator[tuple[int, Any]]:
    """Pairs below `node`, whose first worker is `base`."""
    for slot, child in enumerate(node):
        if child is ABSENT:
            continue
        first = base + slot * span
        if span == 1:
            yield first, child
        else:
            yield from walk(child, first, span // WIDTH)
