"""A pool holds no more than it may, hands out nothing dead, and leaves nothing when it is closed."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.sandbox.pool import Pool
from tests.contracts.sandbox_contract import eventually


class Thing:
    """Something that is made, and given up once."""

    def __init__(self, key: str, factory: "Factory") -> None:
        self.key = key
        self.living = True
        self.closed = 0
        self._factory = factory

    def alive(self) -> bool:
        return self.living

    def close(self) -> None:
        self.closed += 1
        with self._factory.lock:
            self._factory.open[self.key] -= 1


class Factory:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.open: Counter[str] = Counter()
        self.made: list[Thing] = []
        self.gate = threading.Event()
        self.gate.set()

    def make(self, key: str) -> Thing:
        self.gate.wait(10)
        if key == "bad":
            raise ValueError("cannot be made")
        with self.lock:
            self.open[key] += 1
            made = Thing(key, self)
            self.made.append(made)
        return made

    @property
    def left(self) -> int:
        return sum(self.open.values())


@settings(max_examples=60, deadline=None)
@given(
    size=st.integers(0, 3),
    keys=st.lists(st.sampled_from(["a", "b", "c", "bad"]), max_size=20),
    die=st.sets(st.integers(0, 20)),
)
def test_what_is_taken_lives_and_nothing_is_left(size: int, keys: list[str], die: set[int]) -> None:
    factory = Factory()
    pool: Pool[Thing] = Pool(size, factory.make)
    taken = []
    for number, key in enumerate(keys):
        try:
            thing = pool.take(key)
        except ValueError:
            assert key == "bad"
            continue
        assert (thing.key, thing.living, thing.closed) == (key, True, 0)
        taken.append(thing)
        if number in die:
            for made in list(factory.made):
                made.living = made in taken
    assert eventually(lambda: factory.left <= len(taken) + max(size, 1))
    pool.close()
    assert factory.left == len(taken)
    assert all(thing.closed == 0 for thing in taken)
    assert all(thing.closed == 1 for thing in factory.made if thing not in taken)


def test_the_next_one_is_ready() -> None:
    factory = Factory()
    pool: Pool[Thing] = Pool(1, factory.make)
    pool.take("a")
    assert eventually(lambda: len(factory.made) == 2)
    assert pool.take("a") is factory.made[1]
    assert eventually(lambda: len(factory.made) == 3)
    pool.close()


def test_what_was_not_asked_for_longest_is_given_up() -> None:
    factory = Factory()
    pool: Pool[Thing] = Pool(2, factory.make)
    for key in ("a", "b", "c"):
        pool.take(key)
    assert eventually(lambda: factory.open == {"a": 1, "b": 2, "c": 2})
    pool.close()


def test_one_that_is_being_made_is_waited_for() -> None:
    factory = Factory()
    pool: Pool[Thing] = Pool(1, factory.make)
    pool.take("a")
    factory.gate.clear()
    taken = ThreadPoolExecutor(1).submit(lambda: [pool.take("a"), pool.take("a")])
    factory.gate.set()
    assert len(taken.result(10)) == 2
    pool.close()
    assert factory.left == 3


def test_closing_waits_for_what_is_being_made() -> None:
    factory = Factory()
    pool: Pool[Thing] = Pool(2, factory.make)
    mine = pool.take("a")
    factory.gate.clear()
    mine_too = ThreadPoolExecutor(1).submit(pool.take, "b")
    closing = ThreadPoolExecutor(1).submit(pool.close)
    factory.gate.set()
    closing.result(10)
    mine_too.result(10)
    assert factory.left == 2
    assert mine.closed == 0


def test_what_is_put_in_is_handed_out() -> None:
    factory = Factory()
    pool: Pool[Thing] = Pool(0, factory.make)
    first = factory.make("a")
    pool.put("a", first)
    assert pool.take("a") is first
    with pytest.raises(ValueError, match="cannot"):
        pool.take("bad")
    pool.close()
    pool.put("a", factory.make("a"))
    assert factory.left == 1
