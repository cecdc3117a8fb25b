from simloop import Engine


def test_events_run_by_time():
    engine = Engine()
    engine.schedule(5, "late")
    engine.schedule(2, "early")
    assert engine.run(until=4) == 1
    assert engine.log == [(2, "early")]
    assert engine.now == 4


def test_delay_counts_from_now():
    engine = Engine()
    engine.run(until=10)
    engine.schedule(5, "tick")
    engine.run(until=20)
    assert engine.log == [(15, "tick")]


def test_event_can_be_brought_forward():
    engine = Engine()
    tick = engine.schedule(9, "tick")
    engine.postpone(tick, 1)
    assert engine.run(until=20) == 0
    assert engine.log == [(1, "tick")]
