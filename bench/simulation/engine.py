"""Discrete events on a heap: processes that wait, and servers with a queue.

SimPy has the same, but each of its events costs several times as much, and a simulated second here has a million.
"""

from collections.abc import Callable, Generator
from heapq import heappop, heappush
from itertools import count
from typing import Any

Process = Generator["float | Gate", None, None]
"""Yields the time at which it continues, or a gate that it waits for."""


class Gate:
    """Opens once. Processes that wait for it then continue."""

    def __init__(self) -> None:
        self.is_open = False
        self.waiting: list[Process] = []


class Simulation:
    """The clock, in seconds, and what happens at which time. Equal times happen in the order of their calls."""

    def __init__(self) -> None:
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._numbers = count()

    def at(self, time: float, call: Callable[[Any], None], argument: Any = None) -> None:
        heappush(self._events, (time, next(self._numbers), call, argument))

    def start(self, process: Process) -> None:
        self.at(self.now, self._continue, process)

    def open(self, gate: Gate) -> None:
        gate.is_open = True
        for process in gate.waiting:
            self.at(self.now, self._continue, process)
        gate.waiting.clear()

    def run(self, until: float) -> None:
        """Let everything happen that happens before this time."""
        events = self._events
        while events and events[0][0] < until:
            self.now, _, call, argument = heappop(events)
            call(argument)
        self.now = until

    def _continue(self, process: Process) -> None:
        for wish in process:
            if not isinstance(wish, Gate):
                self.at(wish, self._continue, process)
                return
            if not wish.is_open:
                wish.waiting.append(process)
                return


class Server:
    """Does one piece of work after the other, as Redis does, or a process with one event loop."""

    def __init__(self) -> None:
        self.free_at = 0.0
        self.busy = 0.0
        """Seconds of work so far, including what waits."""

    def serve(self, arrives: float, work: float) -> float:
        """Returns when this work is done. Works arrive in the order of the calls."""
        self.free_at = max(arrives, self.free_at) + work
        self.busy += work
        return self.free_at
