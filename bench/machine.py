"""The machine that a result belongs to: its description, the versions of software, and which process runs on which
core. Every subject of a benchmark gets the same cores.

    cores    one worker
    1        nothing is pinned
    2        0 worker   1 Redis and load
    3        0 worker   1 Redis   2… load

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
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from msgspec import Struct

from bench import interpreter
from devstack.redis_server import installed_redis, redis_program

_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")
_CPUS, _MODEL = Path("/proc/cpuinfo"), re.compile(r"model name\s*: (.*)")
_ALLOCATOR = re.compile(r"malloc=(\w+)")
_GIBIBYTE = 1 << 30


class Cores(Struct, frozen=True):
    """Sets of core numbers; None means all cores."""

    worker: set[int] | None = None
    redis: set[int] | None = None
    load: set[int] | None = None


def worker_cores() -> Cores:
    """The cores for one worker process, Redis and the load."""
    cores = _available()
    if len(cores) < 2:
        return Cores()
    return Cores({cores[0]}, {cores[1]}, set(cores[2:]) or {cores[1]})


def service_cores() -> Cores:
    """The cores for the whole service: `worker` is for the API, `load` for Kafka, projectors and producers."""
    cores = _available()
    if len(cores) < 2:
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


def description() -> dict[str, str]:
    """Processor, cores, memory, system and interpreter; neither the machine's name nor the user's."""
    return {
        "processor": _processor(),
        "cores": str(len(_available()) or os.cpu_count()),
        "memory": f"{psutil.virtual_memory().total / _GIBIBYTE:.0f} GiB",
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": f"{platform.python_version()} ({'' if interpreter.is_optimized() else 'not '}optimized)",
        "python flags": interpreter.flags(),
    }


def versions() -> dict[str, str]:
    """Versions of the programs that are measured, or that measure, if they are installed. `requirements.txt` has those
    of the packages."""
    by_name = {}
    others = {"redis-server on PATH": Path(found)} if (found := installed_redis()) else {}
    for name, server in {"redis-server": redis_program(), **others}.items():
        by_name[name] = f"{_version(server, '--version')} with {allocator(server)}"
    for name, argument in (("nginx", "-v"), ("wrk", "--version")):
        if program := shutil.which(name):
            by_name[name] = _version(Path(program), argument)
    return by_name


def allocator(program: Path) -> str:
    """Returns the allocator that a redis-server was built with, such as `jemalloc` or `libc`."""
    match = _ALLOCATOR.search(_output(program, "--version"))
    return match[1] if match else "unknown"


def _available() -> list[int]:
    """The cores that processes can be pinned to; none where that is not possible, as on macOS."""
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []


def _version(program: Path, argument: str) -> str:
    match = _VERSION.search(_output(program, argument))
    return match[0] if match else "unknown"


def _output(program: Path, argument: str) -> str:
    ended = subprocess.run([program, argument], capture_output=True, text=True, check=False)
    return ended.stdout + ended.stderr


def _processor() -> str:
    match = _MODEL.search(_CPUS.read_text()) if _CPUS.is_file() else None
    return match[1] if match else platform.processor()
