"""What a Redis Cluster adds to the cost of records, checkpoints and requests. The simulation uses these figures."""

import asyncio
import socket
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import cycle
from uuid import uuid4

import hiredis
import psutil

from api.redis.connection import pack
from api.redis.store import SCRIPT
from bench import candidates, redis_benchmark, requests
from bench.benchmark import LEADVIEW, Measure, MeasurementFailed, Metric, Subject, Target, Values
from bench.cores import pinned, worker_cores
from bench.crm import Tenant
from bench.filling import fill, intents, live
from bench.lab import Lab, client
from bench.load import Load
from bench.server import cpu_seconds
from bench.traffic import Traffic
from devstack.redis_cluster import RedisCluster
from devstack.redis_server import RedisServer
from projector.intent import Intent
from projector.ledger.control import Position, Step, Stored
from projector.ledger.ledger import Ledger
from projector.ledger.writers import Session, Sessions
from projector.line.pace import FULL
from projector.record import Partition
from projector.redis.applier import Applier
from projector.redis.calls import Generations
from projector.redis.store import Store
from schemas import control, names
from schemas.control import GenerationId, new_generation
from schemas.settings import ProjectorSettings

CPU, REDIS_CPU = Metric("CPU", "µs"), Metric("Redis CPU", "µs")
SHARDS = 64
ONE, CLUSTER, BUSY = "one Redis", f"{SHARDS} shards", "a busy shard"
RECORD, TWICE, CHECKPOINT, REQUEST = "record", "record in two generations", "checkpoint", "request"
_QUICK_SHARDS = 3
_FIRST, _SECOND = new_generation(1), new_generation(2)
_RECORDS, _QUICK_RECORDS = 10_000, 1_000
_CHECKPOINTS, _QUICK_CHECKPOINTS = 200, 20
_PARTITIONS = 4
_CONNECTIONS, _SECONDS = 64, 5.0
_CLIENTS = 24
"""Connections that send something to the busy shard at once."""
_SLICE_OF_SHARD = 3
"""Records of a slice of 200 that one of 64 shards gets."""


class ClusterCosts:
    name = "cluster-costs"
    what = (
        "Writing a record (without reading and decoding it) into one generation and into two, storing the positions of "
        "four partitions, and serving a request over 64 connections, for 200 organizations. The CPU time of the "
        "process that does it is measured with one Redis and with 64 shards; that of Redis with one Redis, and with "
        "one shard whose clients keep it busy, because 64 shards on one core mostly cost the time to wake them."
    )
    metrics = (CPU, REDIS_CPU)
    subjects = (Subject(LEADVIEW, "leadview", "the projector's code in this process, and an API worker"),)
    targets: Sequence[Target] = ()
    rounds = 3
    restarts_each_round = False

    def cases(self, lab: Lab) -> Sequence[str]:  # noqa: ARG002 - required by Benchmark
        works, places = (RECORD, TWICE, CHECKPOINT, REQUEST), (ONE, CLUSTER, BUSY)
        return tuple(case(work, where) for work in works for where in places)

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        cores = worker_cores()
        one = lab.redis(stack, "redis", cores)
        with pinned(cores.redis):
            shards = _QUICK_SHARDS if lab.quick else SHARDS
            cluster = stack.enter_context(RedisCluster(lab.directory / "cluster", shards))
            busy = stack.enter_context(RedisServer.start(lab.directory / "busy", cluster=True))
        traffic = Traffic()
        contacts, leads = traffic.contacts_and_leads(_QUICK_RECORDS if lab.quick else _RECORDS)
        for redis in (one, cluster, busy):
            fill(redis, [*traffic.access, *contacts, *leads])
        places = {
            ONE: _Place(lab, stack, one, traffic),
            CLUSTER: _Cluster(lab, stack, cluster, traffic),
            BUSY: _BusyShard(lab, busy, traffic),
        }

        def measure(name: str) -> Values:
            work, _, where = name.partition(", ")
            with pinned(cores.worker):
                return places[where].measure(work)

        return {LEADVIEW: measure}


def case(work: str, where: str) -> str:
    """The name of a case."""
    return f"{work}, {where}"


class _Records:
    """Records and checkpoints in a Redis that has the organizations and leads of this traffic."""

    slice_records, clients = FULL.slice_records, 1

    def __init__(self, lab: Lab, url: str, servers: Sequence[RedisServer], traffic: Traffic) -> None:
        self._lab, self._url, self._traffic = lab, url, traffic
        self._processes = [psutil.Process(server.pid) for server in servers]

    def measure(self, work: str) -> Values:
        if work == CHECKPOINT:
            count = _QUICK_CHECKPOINTS if self._lab.quick else _CHECKPOINTS
            return self._run(partial(_cover, count), count * self.clients)
        records = list(intents(self._traffic.documents(_QUICK_RECORDS if self._lab.quick else _RECORDS)))
        starts = range(0, len(records), self.slice_records)
        slices = iter([records[start : start + self.slice_records] for start in starts])
        return self._run(partial(_write, slices, (_FIRST, _SECOND) if work == TWICE else (_FIRST,)), len(records))

    def _run(self, work: Callable[[Store, Session], Awaitable[None]], count: int) -> Values:
        """Let each client do the work, all of which is `count` items. The connections are opened before."""

        async def run() -> Values:
            store = Store(ProjectorSettings(redis_url=self._url))
            try:
                sessions = Sessions(store)
                sessions.close(await sessions.open())
                await asyncio.gather(*(store.ask_one(b"EXISTS", names.CONTROL) for _ in range(self.clients)))
                # This session need not confirm the connections that were opened before it.
                session = await sessions.open()
                return await self._measured(partial(work, store, session), count)
            finally:
                await store.close()

        return asyncio.run(run())

    async def _measured(self, work: Callable[[], Awaitable[None]], count: int) -> Values:
        cpu, redis_cpu = time.process_time(), self._redis_cpu_seconds()
        await asyncio.gather(*(work() for _ in range(self.clients)))
        return _values(time.process_time() - cpu, self._redis_cpu_seconds() - redis_cpu, count)

    def _redis_cpu_seconds(self) -> float:
        return cpu_seconds(self._processes)


class _Place(_Records):
    """The same with an API worker."""

    def __init__(self, lab: Lab, stack: ExitStack, redis: RedisServer | RedisCluster, traffic: Traffic) -> None:
        servers = [redis] if isinstance(redis, RedisServer) else redis.primaries
        super().__init__(lab, redis.url, servers, traffic)
        for_leads = requests.for_leads(traffic.tenants)
        self._api = candidates.leadview(lab, stack, redis, worker_cores())
        self._api.wait_until_ready(for_leads[0])
        self._load = Load(lab, for_leads, worker_cores().load)

    def measure(self, work: str) -> Values:
        if work != REQUEST:
            return super().measure(work)
        before, redis_before = self._api.cpu_seconds(), self._redis_cpu_seconds()
        answered = self._load.closed(self._api.port, _CONNECTIONS, self._lab.seconds(_SECONDS)).answered
        return _values(self._api.cpu_seconds() - before, self._redis_cpu_seconds() - redis_before, answered)


class _Cluster(_Place):
    """A cluster, of which only the client's CPU time is of interest."""

    def measure(self, work: str) -> Values:
        return {CPU.name: super().measure(work)[CPU.name]}


class _BusyShard(_Records):
    """A shard that many clients keep busy, each with as much as one of 64 shards gets at once."""

    slice_records, clients = _SLICE_OF_SHARD, _CLIENTS

    def __init__(self, lab: Lab, redis: RedisServer, traffic: Traffic) -> None:
        super().__init__(lab, redis.url, [redis], traffic)
        self._redis = redis
        with client(redis) as connection:
            generation = live(connection)
        self._calls = [_request(tenant, generation) for tenant in traffic.tenants]

    def measure(self, work: str) -> Values:
        values = super().measure(work) if work != REQUEST else self._requests()
        return {REDIS_CPU.name: values[REDIS_CPU.name]}

    def _requests(self) -> Values:
        """Send one request over each connection, then read all replies."""
        with ExitStack() as stack:
            stack.enter_context(client(self._redis)).script_load(SCRIPT)
            address = ("127.0.0.1", self._redis.port)
            sockets = [stack.enter_context(socket.create_connection(address)) for _ in range(_CLIENTS)]
            readers = [hiredis.Reader(notEnoughData=_MORE) for _ in sockets]
            before, count, calls = self._redis_cpu_seconds(), 0, cycle(self._calls)
            deadline = time.monotonic() + self._lab.seconds(_SECONDS)
            while time.monotonic() < deadline:
                for connection in sockets:
                    connection.sendall(next(calls))
                for connection, reader in zip(sockets, readers, strict=True):
                    _read(connection, reader, replies=2)
                count += len(sockets)
            return _values(0.0, self._redis_cpu_seconds() - before, count)


_MORE = object()


def _request(tenant: Tenant, generation: GenerationId) -> bytes:
    """What a worker sends for a request: the script call, and the question what the shard serves."""
    check = (b"HMGET", names.CONTROL, *(field.encode() for field in (*control.SERVED_FIELDS, control.STAMP)))
    return pack(tuple(redis_benchmark.serve(tenant, tenant.leads[0], generation))) + pack(check)


def _read(connection: socket.socket, reader: hiredis.Reader, replies: int) -> None:
    while replies:
        reply = reader.gets()
        if reply is _MORE:
            reader.feed(connection.recv(65_536))
        elif isinstance(reply, hiredis.ReplyError):
            raise MeasurementFailed(f"Redis refused a request: {reply}")
        else:
            replies -= 1


async def _write(slices: Iterator[Sequence[Intent]], generations: Generations, store: Store, session: Session) -> None:
    """Write slices until none is left. Several clients may share them."""
    applier = Applier(store)
    for each in slices:
        await applier.apply(each, generations, fence=session)


async def _cover(count: int, store: Store, session: Session) -> None:
    ledger = Ledger(store, Sessions(store))
    topic = uuid4().hex
    partitions = [Partition(topic, number) for number in range(_PARTITIONS)]
    for offset in range(count):
        step = Step(offset - 1, Position(offset, 0, 0))
        outcome = await ledger.cover(session, dict.fromkeys(partitions, step))
        if not isinstance(outcome, Stored):
            raise MeasurementFailed(f"a checkpoint was refused: {outcome}")


def _values(cpu: float, redis_cpu: float, count: int) -> Values:
    return {CPU.name: cpu / count * 1e6, REDIS_CPU.name: redis_cpu / count * 1e6}
