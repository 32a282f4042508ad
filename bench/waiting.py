"""Waiting: what requests with `Prefer: wait` cost Redis and the worker while nothing changes."""

import resource
import socket
import time
from collections.abc import Mapping
from contextlib import ExitStack
from select import POLLIN, poll

import psutil
from redis import Redis

from bench import servers
from bench.benchmark import (
    LEADVIEW,
    Benchmark,
    Lab,
    Measure,
    MeasurementFailed,
    Metric,
    Subject,
    Target,
    Values,
    client,
)
from bench.crm import Crm, lead_requests
from bench.filling import fill
from bench.machine import worker_cores
from devstack.redis_server import RedisServer

REDIS_CPU = Metric("CPU of Redis", "% of a core")
WORKER_CPU = Metric("CPU of the worker", "% of a core")
LOOKS = Metric("looks, each at up to 100 requests", "looks/s")
COMMANDS = Metric("commands of Redis", "commands/s")
NOBODY, ONE, FEW, MANY = "nobody", "64 of 1 organization", "4,992 of 78 organizations", "5,000 of 5,000 organizations"
_CASES = {NOBODY: (1, 0), ONE: (1, 64), FEW: (78, 64), MANY: (5_000, 1)}
"""Organizations, each with a key of its own, and the requests of each of them that wait."""
_QUICK_SHARE = 50
_SECONDS = 10.0
_WAIT = b"If-None-Match: *\r\nPrefer: wait=30\r\n\r\n"
_FILES = 8_192


def _prepare(lab: Lab, _stack: ExitStack) -> Mapping[str, Measure]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(_FILES, hard)), hard))

    def measure(case: str) -> Values:
        organizations, each = _CASES[case]
        with ExitStack() as stack:
            return _measure(lab, stack, max(1, organizations // _QUICK_SHARE) if lab.quick else organizations, each)

    return {LEADVIEW: measure}


def _measure(lab: Lab, stack: ExitStack, organizations: int, each: int) -> Values:
    crm, cores = Crm(), worker_cores()
    redis = lab.redis(stack, cores)
    fill(redis, crm.records(organizations, 2 * organizations))
    api = servers.leadview(lab, stack, redis, cores)
    requests = [lead_requests([tenant], 1)[0] for tenant in crm.tenants]
    api.wait_until_ready(requests[0])
    waiting = poll()
    for request in requests * each:
        sent = stack.enter_context(socket.create_connection(("127.0.0.1", api.port)))
        sent.sendall(request.removesuffix(b"\r\n") + _WAIT)
        waiting.register(sent, POLLIN)
    seconds = lab.seconds(_SECONDS)
    with client(redis) as connection:
        time.sleep(seconds / 2)  # until the last one is waiting
        before, began_at = _figures(connection, redis, api), time.monotonic()
        time.sleep(seconds)
        after, passed = _figures(connection, redis, api), time.monotonic() - began_at
    if waiting.poll(0):
        raise MeasurementFailed("a request did not wait")
    return {name: (after[name] - before[name]) / passed for name in before}


def _figures(connection: Redis, redis: RedisServer, api: servers.Server) -> dict[str, float]:
    """Returns what was used and done since the start, in the units of the metrics for each second."""
    commands: dict[str, dict[str, float]] = connection.info("commandstats")
    return {
        REDIS_CPU.name: 100 * servers.cpu_seconds([psutil.Process(redis.pid)]),
        WORKER_CPU.name: 100 * api.cpu_seconds(),
        LOOKS.name: commands.get("cmdstat_mget", {"calls": 0})["calls"],
        COMMANDS.name: sum(command["calls"] for command in commands.values()),
    }


BENCHMARK = Benchmark(
    name="waiting",
    what=(
        "What requests with `Prefer: wait` cost while no record changes. Each one waits over a connection of its own "
        "for a lead that exists. Redis and the worker do nothing else but what they do while nobody waits, which is "
        "the first case."
    ),
    metrics=(REDIS_CPU, WORKER_CPU, LOOKS, COMMANDS),
    subjects=(Subject(LEADVIEW, "leadview", "one worker"),),
    cases=tuple(_CASES),
    prepare=_prepare,
    targets=tuple(Target(REDIS_CPU.name, case, 5.0, at_least=False) for case in (ONE, FEW, MANY)),
    rounds=1,
)
