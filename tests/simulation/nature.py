"""What the programs ask the machine for comes from the world: the time, random numbers, names and numbers of processes.

It is replaced at this one place, wherever a module of the programs, of the client of Kafka or of the checker refers to
it: as a name, or as the default of an argument. While a world lasts, nothing else runs in this process.
"""

import os
import random
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, tzinfo
from itertools import product
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import redis.connection

from tests.simulation.loop import Loop, process

EPOCH = 2_840_140_800.0
"""When each world begins: 2060. The server of Redis, whose clock is the real one, lets nothing expire by itself."""
_REPLACED_IN = ("aiokafka", "api", "operate", "projector", "runtime", "schemas", "tests")


def wall_clock(loop: Loop) -> float:
    """Returns the time on the host of the process whose turn it is."""
    return EPOCH + loop.now + (process() or loop.outside).clock


@contextmanager
def nature(loop: Loop) -> Iterator[None]:
    """Replace what the programs know of the machine until the block ends."""
    chance = random.Random(loop.random.random())

    class Moment(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> "Moment":
            return cls.fromtimestamp(wall_clock(loop), tz)

    replaced: list[tuple[object, object]] = [
        (time.time, lambda: wall_clock(loop)),
        (time.time_ns, lambda: int(wall_clock(loop) * 1e9)),
        (time.monotonic, lambda: loop.now),
        (time.monotonic_ns, lambda: int(loop.now * 1e9)),
        (time.perf_counter, lambda: loop.now),
        (os.urandom, chance.randbytes),
        (os.getpid, lambda: (process() or loop.outside).pid),
        (socket.gethostname, lambda: (process() or loop.outside).host),
    ]
    before: list[tuple[Any, str, object]] = []

    def put(holder: Any, name: str, value: object) -> None:
        before.append((holder, name, getattr(holder, name)))
        setattr(holder, name, value)

    defaults = [(holder, name, getattr(holder, name)) for holder, name in _defaults()]
    put(redis.connection, "os", SimpleNamespace(**vars(os)))  # our own client, which is outside of the world
    control = sys.modules["projector.ledger.control"]
    put(control, "datetime", Moment)
    put(random, "_urandom", replaced[5][1])
    others = (module for module in list(sys.modules.values()) if _is_of_programs(module))
    for module in (time, os, socket, *others):
        for name, value in list(vars(module).items()):
            for former, other in replaced:
                if value is former:
                    put(module, name, other)
    for holder, name, values in defaults:
        put(holder, name, _with(values, replaced))
    state = random.getstate()
    random.seed(loop.random.random())
    try:
        yield
    finally:
        random.setstate(state)
        for holder, name, value in reversed(before):
            setattr(holder, name, value)


def _is_of_programs(module: ModuleType) -> bool:
    name = getattr(module, "__name__", "")
    return name.partition(".")[0] in _REPLACED_IN and not name.startswith("tests.simulation")


def _defaults() -> Iterator[tuple[FunctionType, str]]:
    """Yields the functions whose arguments have a clock as their default, and where that is stored."""
    modules = [module for module in list(sys.modules.values()) if _is_of_programs(module)]
    clocks = (time.time, time.monotonic, time.monotonic_ns, time.perf_counter)
    for module in modules:
        things = list(vars(module).values())
        things += [one for thing in things if isinstance(thing, type) for one in vars(thing).values()]
        for thing in things:
            function = getattr(thing, "__func__", thing)
            if not isinstance(function, FunctionType):
                continue
            for name in ("__defaults__", "__kwdefaults__"):
                values = getattr(function, name) or ()
                values = values.values() if isinstance(values, dict) else values
                if any(value is clock for value, clock in product(values, clocks)):
                    yield function, name


def _with(values: Any, replaced: list[tuple[object, object]]) -> Any:
    def other(value: object) -> object:
        return next((new for former, new in replaced if value is former), value)

    if isinstance(values, dict):
        return {name: other(value) for name, value in values.items()}
    return tuple(map(other, values))
