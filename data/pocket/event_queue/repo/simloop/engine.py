"""Runs the events of a queue against a simulated clock."""

from simloop.events import EventQueue


class Engine:
    def __init__(self):
        self.now = 0
        self.log = []
        self._queue = EventQueue()

    def schedule(self, delay, label, priority=0):
        """Let an event happen delay time units from now and return its handle."""
        if delay < 0:
            raise ValueError("delay must not be negative")
        return self._queue.push(self.now + delay, label, priority)

    def postpone(self, handle, delay):
        """Let a waiting event happen delay time units from now instead."""
        if delay < 0:
            raise ValueError("delay must not be negative")
        self._queue.move(handle, self.now + delay)

    def cancel(self, handle):
        self._queue.cancel(handle)

    def run(self, until):
        """Run all events due up to and including until, then let the clock stand there."""
        while True:
            due = self._queue.next_time()
            if due is None or due > until:
                break
            self.now, label = self._queue.pop()
            self.log.append((self.now, label))
        self.now = until
        return len(self._queue)
