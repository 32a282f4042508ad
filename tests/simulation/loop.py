"""An event loop in which time is virtual. Each process of the world has its own ready callbacks and timers.

A process keeps the order that asyncio promises. Which of the processes that could go on has the next turn, and how long
a turn takes, is decided by the seed. If none can go on, time jumps to the next timer.
"""

import asyncio
from asyncio import Handle, TimerHandle
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from functools import partial
from heapq import heappop, heappush
from itertools import count
from math import inf
from random import Random
from typing import Any, TypeVar

T = TypeVar("T")
_SHORTEST, _LONGER = 0.000_01, 0.000_3
"""The seconds that one turn of an event loop takes at least, and how much longer at most."""


class Process:
    """A program on a host. One that is dead does nothing any more, one that is suspended nothing for now."""

    def __init__(self, loop: "Loop", host: str, pid: int) -> None:
        self.loop = loop
        self.host = host
        self.pid = pid
        self.clock = 0.0
        """The seconds by which the clock of its host is ahead."""
        self.ready: deque[Handle] = deque()
        self.timers: list[tuple[float, int, TimerHandle]] = []
        self.busy_until = 0.0
        self.due = inf
        """When it can have its next turn."""
        self.suspended = False
        self.dead = False
        self.tasks: list[asyncio.Task[Any]] = []
        self.signals: dict[int, Callable[..., object]] = {}

    def stop(self) -> None:
        """Let it do nothing until `resume`."""
        self.suspended, self.due = True, inf

    def resume(self) -> None:
        self.suspended = False
        self._look_ahead()

    def run(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Let this process do some work."""
        task = self.loop.create_task(work, context=self.context())
        self.tasks.append(task)
        return task

    def context(self) -> Context:
        context = copy_context()
        context.run(_process.set, self)
        return context

    def wake(self, when: float) -> None:
        """Note that it has something to do at this time."""
        when = max(when, self.busy_until)
        if when < self.due and not self.suspended and not self.dead:
            self.due = when

    def _look_ahead(self) -> None:
        while self.timers and self.timers[0][2].cancelled():
            heappop(self.timers)
        self.due = inf
        if self.ready or self.timers:
            self.wake(0.0 if self.ready else self.timers[0][0])

    def turn(self, now: float, seconds: float) -> None:
        """Call what was ready when the turn began, in order. The turn takes this time."""
        while self.timers and self.timers[0][0] <= now:
            self.ready.append(heappop(self.timers)[2])
        for _ in range(len(self.ready)):
            if self.dead:
                return
            handle = self.ready.popleft()
            if not handle.cancelled():
                handle._run()
        self.busy_until = now + seconds
        self._look_ahead()


_process: ContextVar[Process] = ContextVar("process")


def process() -> Process | None:
    """Returns the process whose turn it is; None if it is that of the world itself."""
    return _process.get(None)


class _Numbered:
    """Objects with a number as their hash: the order in a set must not depend on addresses in memory."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class _Task(_Numbered, asyncio.Task[Any]):
    pass


class _Future(_Numbered, asyncio.Future[Any]):
    pass


class Loop(asyncio.BaseEventLoop):
    """Runs all processes of a world. `connect` opens a connection of the process whose turn it is."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.random = Random(seed)
        self.now = 0.0
        self._numbers = count()
        self.outside = Process(self, "outside", 1)
        """Where the world itself works: nemesis, writer and readers."""
        self.processes = [self.outside]
        self.ended: list[Process] = []
        self.set_task_factory(self._task)
        self.connect: Callable[..., Coroutine[Any, Any, Any]]

    def start(self, host: str) -> Process:
        """Returns a new process on this host."""
        process = Process(self, host, 100 + next(self._numbers))
        self.processes.append(process)
        return process

    def _task(self, _: Any, work: Any, **options: Any) -> Any:
        task = _Task(work, loop=self, **options)
        task.number = next(self._numbers)
        return task

    def create_future(self) -> Any:
        future = _Future(loop=self)
        future.number = next(self._numbers)
        return future

    def time(self) -> float:
        return self.now

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        context = context or copy_context()
        handle = Handle(callback, args, self, context)
        own = context.get(_process, self.outside)
        own.ready.append(handle)
        own.wake(0.0)
        return handle

    def call_soon_threadsafe(self, callback: Any, *args: Any, context: Context | None = None) -> Handle:  # type: ignore[override]
        return self.call_soon(callback, *args, context=context)

    def call_later(self, delay: float, callback: Any, *args: Any, context: Context | None = None) -> TimerHandle:  # type: ignore[override]
        return self.call_at(self.now + delay, callback, *args, context=context)

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> TimerHandle:  # type: ignore[override]
        context = context or copy_context()
        timer = TimerHandle(when, callback, args, self, context)
        own = context.get(_process, self.outside)
        heappush(own.timers, (when, next(self._numbers), timer))
        own.wake(when)
        return timer

    def _timer_handle_cancelled(self, handle: TimerHandle) -> None:
        """A cancelled timer is left where it is."""

    def _run_once(self) -> None:
        """Give one process a turn."""
        now, able, soonest, next_one = self.now, list[Process](), inf, self.outside
        for process in self.processes:
            when = process.due
            if when <= now:
                able.append(process)
            elif when < soonest:
                soonest, next_one = when, process
        if not able:
            if soonest == inf:
                raise RuntimeError("nothing can happen any more")
            self.now = now = soonest
            able.append(next_one)
        chosen = able[0] if len(able) == 1 else self.random.choice(able)
        chosen.turn(now, _SHORTEST + _LONGER * self.random.random())

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        return await self.connect(protocol_factory, host, port)

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:  # type: ignore[override]  # noqa: ARG002 - asyncio's signature
        """Do the work at once: threads are no part of this world."""
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:  # noqa: BLE001 - the caller gets it
            done.set_exception(error)
        return done

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:  # type: ignore[override]
        (process() or self.outside).signals[sig] = partial(callback, *args)

    def remove_signal_handler(self, sig: int) -> bool:
        return (process() or self.outside).signals.pop(sig, None) is not None
