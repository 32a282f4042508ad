"""Which process runs on which core. Every subject of a benchmark gets the same cores.

    cores    one worker                     two workers
    1        nothing is pinned              nothing is pinned
    2        0 worker   1 Redis and load    nothing is pinned
    3        0 worker   1 Redis   2 load    0, 1 workers   2 Redis and load
    4        0 worker   1 Redis   2… load   0, 1 workers   2 Redis   3… load

A worker has a core to itself if there are enough cores, because the worker is what is measured. On two cores, Redis
and the load share the other core: a worker that is faster than both together gets a figure that is too low, never too
high.

If the whole service runs (`service_cores`), the processes that serve readers and those that produce documents have
different cores, as if they ran on different machines:

    cores    serving                        producing
    1        nothing is pinned              nothing is pinned
    2        0 API, Redis and requests      1 Kafka, projector, rebuild, producer
    3        0 API and requests   1 Redis   2… Kafka, projector, rebuild, producer
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct


class Cores(Struct, frozen=True):
    """Sets of core numbers; None means all cores."""

    worker: set[int] | None = None
    redis: set[int] | None = None
    load: set[int] | None = None

    def describe(self) -> dict[str, str]:
        names = {"worker": self.worker, "redis": self.redis, "load": self.load}
        return {name: "any" if cores is None else ",".join(map(str, sorted(cores))) for name, cores in names.items()}


def available() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))  # without this call, as on macOS, nothing is pinned


def worker_cores(workers: int = 1) -> Cores:
    """The cores for this number of worker processes."""
    cores = available()
    if not hasattr(os, "sched_setaffinity") or len(cores) <= workers:
        return Cores()
    rest = cores[workers:]
    return Cores(set(cores[:workers]), set(rest[:1]), set(rest[1:]) or set(rest))


def service_cores() -> Cores:
    """The cores for the whole service: `worker` is for the API, `load` for Kafka, projectors and producers."""
    cores = available()
    if not hasattr(os, "sched_setaffinity") or len(cores) < 2:
        return Cores()
    serving = cores[: min(2, len(cores) - 1)]
    return Cores({serving[0]}, {serving[-1]}, set(cores[len(serving) :]))


@contextmanager
def pinned(cores: set[int] | None) -> Iterator[None]:
    """Processes that are started in this block run on these cores, because they inherit the affinity."""
    if cores is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
