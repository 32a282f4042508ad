"""One organization does its worst while another one reads: what the second one notices."""

import socket
import struct
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial

from bench import servers
from bench.api import P50, P99
from bench.benchmark import LEADVIEW, Benchmark, Lab, Measure, Metric, Subject, Target, Values, client
from bench.crm import Crm, Tenant, lead_request
from bench.filling import live
from bench.load import Load
from bench.servers import Stage
from schemas import layouts, names, resources

ALONE = "nobody else"
_FREE, _REFUSED, _BURSTS, _ALLOWED = "free: 304", "refused: 429", "the usual limits", "no limit"
_UNREAD = "no limit, and they do not read"
_ATTACKS = (_FREE, _REFUSED, _BURSTS, _ALLOWED, _UNREAD)
_WORST = Metric("worst", "ms")
_DOCUMENTS = 400
_NEVER = (10_000_000, 10_000)
_LIMITS = {_REFUSED: (1, 86_400), _BURSTS: (100, 10, 300, 10)}
_CONNECTIONS = 64
_LARGE_BYTES = 970_000
_RATE = 100.0
_SECONDS = 10.0
_READERS = 8
_MOST_TIMES = 3.0


def _prepare(lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
    crm = Crm()
    stage = servers.stage(lab, stack, crm, crm.records(2, _DOCUMENTS))
    reader, other = stage.tenants
    reading = Load(lab, [lead_request(reader, lead) for lead in reader.leads], stage.cores.load)
    with client(stage.redis) as redis:
        owner = names.organization(other.organization_id)
        name = names.document(resources.LEAD, owner, live(redis), other.leads[0])
        value = redis.get(name)
        assert isinstance(value, bytes)  # noqa: S101 - it was just written
        redis.set(name, b'%b,"pad":"%b"}' % (value[:-1], b"y" * _LARGE_BYTES))
    return {LEADVIEW: partial(_measure, stage, reading, other)}


def _measure(stage: Stage, reading: Load, other: Tenant, case: str) -> Values:
    """`other` is the organization that does its worst, with its first lead."""
    port = stage.servers[LEADVIEW].port
    with client(stage.redis) as redis:
        owner = names.organization(other.organization_id)
        limits = _LIMITS.get(case, _NEVER)
        redis.setrange(owner, layouts.LIMITS.start, struct.pack("<IIII", *(limits * 2)[:4]))
        redis.delete(names.organization_limit(owner), *redis.scan_iter(owner + b"q*"))
    request = lead_request(other, other.leads[0])
    if case == _FREE:
        request = request.replace(b"\r\n\r\n", b"\r\nIf-None-Match: *\r\n\r\n")
    sending = Load(stage.lab, [request], stage.cores.load)
    attacks: dict[str, Callable[[], AbstractContextManager[object]]] = {
        ALONE: nullcontext,
        _UNREAD: partial(_unread, port, request),
    }
    with attacks.get(case, partial(sending.in_background, port, _CONNECTIONS, None, idle=True))():
        report = reading.open(port, _READERS, stage.lab.seconds(_SECONDS), _RATE, first=True)
    return {P50.name: report.p50 * 1e3, P99.name: report.p99 * 1e3, _WORST.name: report.worst * 1e3}


@contextmanager
def _unread(port: int, request: bytes) -> Iterator[None]:
    """Send the request several times over each connection, and read nothing."""
    with ExitStack() as stack:
        for _ in range(_CONNECTIONS):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.sendall(4 * request)
        yield


BENCHMARK = Benchmark(
    name="fairness",
    what=(
        f"One organization reads its leads, {_RATE:.0f} times a second, while another one asks for a lead of "
        f"{_LARGE_BYTES // 1000} KB over {_CONNECTIONS} connections as fast as the API answers. Each response to the "
        "first one must be 200. The clients of both run beside Redis on one core."
    ),
    metrics=(P50, P99, _WORST),
    subjects=(Subject(LEADVIEW, "leadview", "`python -m api`, as it is delivered"),),
    cases=(ALONE, *_ATTACKS),
    prepare=_prepare,
    targets=tuple(Target(P99.name, case, _MOST_TIMES, at_least=False, case_against=ALONE) for case in _ATTACKS),
)
