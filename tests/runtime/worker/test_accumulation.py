from polyrhythm.runtime.worker.loader import Accumulation


class Recorder:
    def __init__(self) -> None:
        self.skipped: list[int] = []

    def skip_step(self, samples: int) -> None:
        self.skipped.append(samples)


def test_a_step_belongs_to_all_batches_since_the_one_before() -> None:
    steps = Recorder()
    accumulation = Accumulation(steps)
    due = list[bool]()
    for sizes in ([3, 3], [2], [1, 1, 1]):
        for number, size in enumerate(sizes, 1):
            accumulation.end()
            accumulation.given(size, number == len(sizes))
            due.append(accumulation.due)
        assert accumulation.take() == sum(sizes)
    accumulation.end()
    assert steps.skipped == []
    assert due == [False, True, True, False, False, True]


def test_a_step_that_does_not_come_is_skipped_once() -> None:
    steps = Recorder()
    accumulation = Accumulation(steps)
    accumulation.given(4, True)
    accumulation.end()
    accumulation.given(3, True)
    accumulation.end()
    accumulation.end()
    assert steps.skipped == [4, 3]


def test_a_new_epoch_forgets_what_a_loop_left_behind() -> None:
    steps = Recorder()
    accumulation = Accumulation(steps)
    accumulation.given(4, True)
    accumulation.start()
    accumulation.end()
    assert steps.skipped == []
