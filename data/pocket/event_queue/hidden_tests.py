from simloop import Engine, EventQueue


def test_postponed_event_waits_for_its_new_time():
    engine = Engine()
    save = engine.schedule(3, "save")
    engine.postpone(save, 10)
    assert engine.run(until=5) == 1
    assert engine.log == []
    assert engine.run(until=10) == 0
    assert engine.log == [(10, "save")]


def test_run_stops_in_front_of_a_later_event():
    engine = Engine()
    gone = engine.schedule(3, "gone")
    engine.schedule(10, "late")
    engine.cancel(gone)
    assert engine.run(until=5) == 1
    assert engine.log == []
    assert engine.now == 5


def test_postponed_event_stands_behind_equal_ones():
    engine = Engine()
    first = engine.schedule(3, "first")
    engine.schedule(3, "second")
    engine.postpone(first, 8)
    engine.postpone(first, 3)
    engine.run(until=9)
    assert engine.log == [(3, "second"), (3, "first")]


def test_next_time_after_cancel_and_move():
    queue = EventQueue()
    first = queue.push(1, "first")
    second = queue.push(2, "second")
    queue.push(7, "third")
    queue.cancel(first)
    assert queue.next_time() == 2
    queue.move(second, 9)
    assert queue.next_time() == 7
    assert [queue.pop(), queue.pop()] == [(7, "third"), (9, "second")]


def test_brought_forward_event_runs_once():
    engine = Engine()
    tick = engine.schedule(9, "tick")
    engine.schedule(5, "other")
    engine.postpone(tick, 1)
    assert engine.run(until=20) == 0
    assert engine.log == [(1, "tick"), (5, "other")]


def test_priority_survives_a_move():
    queue = EventQueue()
    urgent = queue.push(6, "urgent", priority=-1)
    queue.push(4, "normal")
    queue.move(urgent, 4)
    assert queue.pop() == (4, "urgent")
    assert queue.pop() == (4, "normal")


def test_event_at_the_limit_is_run():
    engine = Engine()
    engine.schedule(5, "tick")
    assert engine.run(until=5) == 0
    assert engine.log == [(5, "tick")]


def test_finished_event_cannot_be_changed():
    engine = Engine()
    tick = engine.schedule(1, "tick")
    engine.run(until=2)
    for change in (engine.cancel, lambda handle: engine.postpone(handle, 3)):
        try:
            change(tick)
        except KeyError:
            continue
        raise AssertionError("no KeyError")
