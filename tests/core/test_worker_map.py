import pickle

from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.core.worker_map import WorkerMap

workers = st.one_of(st.integers(0, 70), st.sampled_from([31, 32, 1023, 1024, 1025, 40_000]))
steps = st.lists(st.tuples(workers, st.none() | st.integers()), max_size=60)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(steps=steps)
def test_against_a_dictionary(steps: list[tuple[int, int | None]]) -> None:
    """None removes; older maps stay as they were."""
    model: dict[int, int] = {}
    current: WorkerMap[int] = WorkerMap()
    history = []
    for worker, value in steps:
        history.append((current, dict(model)))
        if value is None:
            model.pop(worker, None)
            current = current.remove(worker)
        else:
            model[worker] = value
            current = current.set(worker, value)
        assert current.get(worker) == model.get(worker)
        assert (worker in current) == (worker in model)
    for map_, items in [*history, (current, model)]:
        assert list(map_.items()) == sorted(items.items())
        assert list(map_) == sorted(items)
        assert len(map_) == len(items)
        assert pickle.loads(pickle.dumps(map_)) == map_  # noqa: S301


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(items=st.dictionaries(st.integers(0, 40), st.integers()), data=st.data())
def test_equal_content_is_equal_whatever_the_order(items: dict[int, int], data: st.DataObject) -> None:
    order = data.draw(st.permutations(sorted(items)))
    one: WorkerMap[int] = WorkerMap()
    other: WorkerMap[int] = WorkerMap()
    for worker in sorted(items):
        one = one.set(worker, items[worker])
    for worker in order:
        other = other.set(worker, 0).set(worker, items[worker])
    assert one == other
    assert hash(one) == hash(other)


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(items=st.dictionaries(workers, st.integers()), gone=workers)
def test_what_was_removed_leaves_no_trace(items: dict[int, int], gone: int) -> None:
    """Equality must not depend on who was there once."""
    plain: WorkerMap[int] = WorkerMap()
    for worker, value in items.items():
        plain = plain.set(worker, value)
    before = plain.remove(gone)
    assert before.set(gone, 1).remove(gone) == before


@given(items=st.dictionaries(st.integers(0, 2000), st.integers(0, 9)))
def test_map_changes_every_value_and_nothing_else(items: dict[int, int]) -> None:
    made: WorkerMap[int] = WorkerMap()
    for worker, value in items.items():
        made = made.set(worker, value)
    changed = made.map(lambda value: value + 1)
    assert dict(changed.items()) == {worker: value + 1 for worker, value in items.items()}
    assert dict(made.items()) == items
    assert len(changed) == len(items)


def test_set_all() -> None:
    empty: WorkerMap[bool] = WorkerMap()
    assert list(empty.set_all((5, 2, 5), True).items()) == [(2, True), (5, True)]
