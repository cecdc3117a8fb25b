from simloop import EventQueue


def drain(queue):
    return [queue.pop()[1] for _ in range(len(queue))]


def test_priority_then_order_of_entry():
    queue = EventQueue()
    queue.push(1, "b")
    queue.push(1, "c")
    queue.push(1, "a", priority=-1)
    assert drain(queue) == ["a", "b", "c"]


def test_cancelled_event_is_passed_over():
    queue = EventQueue()
    first = queue.push(1, "first")
    queue.push(2, "second")
    queue.cancel(first)
    assert queue.pop() == (2, "second")
    assert queue.next_time() is None


def test_empty_queue():
    try:
        EventQueue().pop()
    except IndexError:
        return
    raise AssertionError("no IndexError")
