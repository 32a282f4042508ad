"""One organization does its worst while another one reads: what the second one notices."""

import os
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial

import msgspec
from msgspec import Struct

from bench import candidates, requests
from bench.api import P50, P99
from bench.benchmark import LEADVIEW, Measure, Metric, Subject, Target, Values
from bench.cores import pinned
from bench.crm import Tenant
from bench.filling import live
from bench.lab import Lab, client
from bench.load import Load
from bench.sender import Order
from bench.server import ROOT
from schemas import layouts, names, resources

ALONE = "nobody else"
_FREE, _REFUSED, _BURSTS, _ALLOWED = "free: 304", "refused: 429", "the usual limits", "no limit"
_UNREAD = "no limit, and they do not read"
_NEVER = (10_000_000, 10_000)
_LIMITS = {_REFUSED: (1, 86_400), _BURSTS: (100, 10, 300, 10)}
_CONNECTIONS = 64
_LARGE_BYTES = 970_000
_RATE = 100.0
_SECONDS = 10.0
_READERS = 8
_MOST_TIMES = 3.0


class Attack(Struct, frozen=True):
    """An organization with a large document, and the request for it."""

    tenant: Tenant
    request: bytes


class Fairness:
    name = "fairness"
    what = (
        f"One organization reads its leads, {_RATE:.0f} times a second, while another one asks for a lead of "
        f"{_LARGE_BYTES // 1000} KB over {_CONNECTIONS} connections as fast as the API answers. Each response to the "
        "first one must be 200. The clients of both run beside Redis on one core."
    )
    metrics = (P50, P99, Metric("worst", "ms"))
    subjects = (Subject(LEADVIEW, "leadview", "`python -m api`, as it is delivered"),)
    targets = tuple(
        Target(P99.name, case, _MOST_TIMES, at_least=False, case_against=ALONE)
        for case in (_FREE, _REFUSED, _BURSTS, _ALLOWED, _UNREAD)
    )
    rounds = 3
    restarts_each_round = False

    def cases(self, lab: Lab) -> Sequence[str]:  # noqa: ARG002 - required by Benchmark
        return (ALONE, _FREE, _REFUSED, _BURSTS, _ALLOWED, _UNREAD)

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        stage = candidates.set_up(lab, stack, only=frozenset({LEADVIEW}))
        reader, other = stage.tenants[:2]
        load = Load(lab, [requests.for_lead(reader, lead) for lead in reader.leads], stage.cores.load)
        attack = Attack(other, requests.for_lead(other, other.leads[0]))
        with client(stage.redis) as redis:
            name = names.document(
                resources.LEAD, names.organization(other.organization_id), live(redis), other.leads[0]
            )
            value = redis.get(name)
            assert isinstance(value, bytes)  # noqa: S101 - it was just written
            redis.set(name, b'%b,"pad":"%b"}' % (value[:-1], b"y" * _LARGE_BYTES))
        return {LEADVIEW: partial(_measure, lab, stage, load, attack)}


def _measure(lab: Lab, stage: candidates.Stage, load: Load, attack: Attack, case: str) -> Values:
    port = stage.servers[LEADVIEW].port
    with client(stage.redis) as redis:
        owner = names.organization(attack.tenant.organization_id)
        limits = _LIMITS.get(case, _NEVER)
        redis.setrange(owner, layouts.LIMITS.start, struct.pack("<IIII", *(limits * 2)[:4]))
        redis.delete(names.organization_limit(owner), *redis.scan_iter(owner + b"q*"))
    request = attack.request
    if case == _FREE:
        request = request.replace(b"\r\n\r\n", b"\r\nIf-None-Match: *\r\n\r\n")
    attacks: dict[str, Callable[[], AbstractContextManager[None]]] = {
        ALONE: nullcontext,
        _UNREAD: partial(_unread, port, request),
    }
    with attacks.get(case, partial(_sending, port, request, stage.cores.load))():
        report = load.open(port, _READERS, lab.seconds(_SECONDS), _RATE)
    return {P50.name: report.p50 * 1e3, P99.name: report.p99 * 1e3, "worst": report.worst * 1e3}


@contextmanager
def _sending(port: int, request: bytes, cores: set[int] | None) -> Iterator[None]:
    """Send the request over all connections again and again, in a process of its own.

    It runs only while no other process needs its core: what it needs for itself is not what the service lets the other
    one notice.
    """
    order = Order(port, _CONNECTIONS, 1e9, [request])
    with pinned(cores):
        sending = subprocess.Popen(
            (sys.executable, "-m", "bench.sender"),
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            cwd=ROOT,
        )
    with sending:
        try:
            os.sched_setscheduler(sending.pid, os.SCHED_IDLE, os.sched_param(0))
            assert sending.stdin is not None  # noqa: S101 - it is a pipe
            sending.stdin.write(msgspec.msgpack.encode(order))
            sending.stdin.close()
            yield
        finally:
            sending.kill()


@contextmanager
def _unread(port: int, request: bytes) -> Iterator[None]:
    """Send the request several times over each connection, and read nothing."""
    with ExitStack() as stack:
        for _ in range(_CONNECTIONS):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(4 * request)
        yield
