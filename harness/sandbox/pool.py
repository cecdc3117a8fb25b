"""Things made ahead of need, because making one takes longer than anybody wants to wait.

What is taken is replaced in the background. `size` bounds what waits, over all keys; what was not asked for longest
is given up first. Nothing is left after `close`.
"""

import contextlib
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, Protocol, TypeVar

_MAKERS = 2


class Pooled(Protocol):
    """What a pool holds."""

    def alive(self) -> bool:
        """False: it is of no use any more."""
        ...

    def close(self) -> None:
        """Give it up. Never raises."""
        ...


T = TypeVar("T", bound=Pooled)


class Pool(Generic[T]):
    """Keeps at most `size` things waiting; 0: none, each is made when it is taken."""

    def __init__(self, size: int, make: Callable[[str], T]) -> None:
        self._size = size
        self._make = make
        self._lock = threading.Lock()
        self._waiting: OrderedDict[str, deque[Future[T]]] = OrderedDict()
        self._makers = ThreadPoolExecutor(_MAKERS, thread_name_prefix="forkroll-pool")
        self._closed = False

    def take(self, key: str) -> T:
        """A fresh one; the caller closes it. Raises what making one raised."""
        taken = self._ready(key)
        if taken is None:
            taken = self._make(key)  # not while another one is made beside it
        self._order(key)
        return taken

    def put(self, key: str, made: T) -> None:
        """Add one that was made elsewhere."""
        done: Future[T] = Future()
        done.set_result(made)
        self._keep(key, done)

    def close(self) -> None:
        """Give up all that waits, and all that is still being made."""
        with self._lock:
            self._closed = True
            left = [one for some in self._waiting.values() for one in some]
            self._waiting.clear()
        for one in left:
            _give_up(one)
        self._makers.shutdown(wait=True)

    def _ready(self, key: str) -> T | None:
        """One that waits, or that is being made right now; None when there is no such."""
        while True:
            with self._lock:
                some = self._waiting.get(key)
                first = some.popleft() if some else None
            if first is None:
                return None
            if first.cancel():  # its making has not begun
                continue
            with contextlib.suppress(Exception):  # the caller's own try says what is wrong
                made = first.result()
                if made.alive():
                    return made
                made.close()

    def _order(self, key: str) -> None:
        if self._size:
            with contextlib.suppress(RuntimeError):  # closed meanwhile
                self._keep(key, self._makers.submit(self._make, key))

    def _keep(self, key: str, one: "Future[T]") -> None:
        with self._lock:
            self._waiting.setdefault(key, deque()).append(one)
            self._waiting.move_to_end(key)
            surplus = [one] if self._closed else self._surplus()
            if self._closed:
                self._waiting.clear()
        for given_up in surplus:
            _give_up(given_up)

    def _surplus(self) -> "list[Future[T]]":
        found = []
        while sum(map(len, self._waiting.values())) > max(self._size, 1):
            key = next(key for key, some in self._waiting.items() if some)
            found.append(self._waiting[key].popleft())
            if not self._waiting[key]:
                del self._waiting[key]
        return found


def _give_up(one: "Future[T]") -> None:
    """Cancel it, or close it as soon as it is made."""

    def close(done: "Future[T]") -> None:
        if not done.cancelled() and done.exception() is None:
            done.result().close()

    one.cancel()
    one.add_done_callback(close)
