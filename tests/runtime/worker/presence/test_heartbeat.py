"""What a worker makes of a coordinator that is silent."""

from polyrhythm.runtime.worker.presence.heartbeat import Silence


def test_who_is_heard_is_not_given_up() -> None:
    silence = Silence(period_s=1.0, limit_s=3.0, now_s=0.0)
    for second in range(1, 100):
        silence.hear(second - 0.5)
        assert not silence.is_too_long(second)


def test_silence_is_noticed_within_a_period() -> None:
    silence = Silence(period_s=1.0, limit_s=3.0, now_s=0.0)
    silence.hear(10.0)
    assert next(second for second in range(10, 20) if silence.is_too_long(second)) == 14


def test_a_process_that_was_stopped_itself_listens_once_more() -> None:
    silence = Silence(period_s=1.0, limit_s=3.0, now_s=0.0)
    assert not silence.is_too_long(1.0)
    assert [silence.is_too_long(second) for second in (101.0, 102.0, 103.0, 104.0, 105.0)] == [False] * 4 + [True]
