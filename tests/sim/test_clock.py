from polyrhythm.sim.clock import Calendar, Reminder


def test_order_of_time_then_of_scheduling() -> None:
    calendar, seen = Calendar(), []
    for time_s, name in ((2.0, "c"), (1.0, "a"), (2.0, "d"), (1.0, "b")):
        calendar.at(time_s, lambda timer: seen.append((calendar.now_s, timer.about)), Reminder(name))
    while calendar.advance():
        pass
    assert seen == [(1.0, "a"), (1.0, "b"), (2.0, "c"), (2.0, "d")]


def test_what_was_revoked_is_skipped_and_takes_no_time() -> None:
    calendar, seen = Calendar(), []
    revoked = Reminder("revoked")
    calendar.at(1.0, lambda timer: seen.append(timer.about), revoked)
    calendar.at(2.0, lambda timer: seen.append(timer.about), Reminder("kept"))
    revoked.serial += 1
    assert calendar.advance()
    assert (seen, calendar.now_s) == (["kept"], 2.0)


def test_time_stops_at_the_limit() -> None:
    calendar = Calendar(limit_s=5.0)
    calendar.at(5.0, lambda timer: None, Reminder("in"))
    calendar.at(5.1, lambda timer: None, Reminder("out"))
    assert calendar.advance()
    assert not calendar.advance()
    assert calendar.now_s == 5.0
