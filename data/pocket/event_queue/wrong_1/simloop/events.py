"""The events that wait for their time, in the order in which they are due."""

import heapq


class EventQueue:
    """A heap of (time, priority, serial, handle) entries.

    Taking an entry out of the middle of a heap is slow, so an entry that is no longer wanted stays
    in the heap and is passed over later; _waiting holds the events that are really due.
    """

    def __init__(self):
        self._heap = []
        self._waiting = {}
        self._serial = 0
        self._handles = 0

    def __len__(self):
        return len(self._waiting)

    def _enter(self, handle, time, priority, label):
        self._serial += 1
        self._waiting[handle] = (time, priority, self._serial, label)
        heapq.heappush(self._heap, (time, priority, self._serial, handle))

    def push(self, time, label, priority=0):
        """Add an event and return its handle; a lower priority number goes first."""
        self._handles += 1
        self._enter(self._handles, time, priority, label)
        return self._handles

    def cancel(self, handle):
        """Take an event out; KeyError when it is not waiting any more."""
        del self._waiting[handle]

    def move(self, handle, time):
        """Give a waiting event another time; KeyError when it is not waiting any more."""
        _, priority, _, label = self._waiting[handle]
        self._enter(handle, time, priority, label)

    def next_time(self):
        """The time of the event that pop would return, or None."""
        return self._heap[0][0] if self._waiting else None

    def pop(self):
        """Remove the event that is due first and return its (time, label)."""
        while self._heap:
            time, _, serial, handle = heapq.heappop(self._heap)
            if handle in self._waiting and self._waiting[handle][2] == serial:
                label = self._waiting.pop(handle)[3]
                return time, label
        raise IndexError("no events are waiting")
