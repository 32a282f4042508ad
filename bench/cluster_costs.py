"""What a Redis Cluster adds to the cost of records, checkpoints and requests. The simulation uses these figures."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from uuid import uuid4

import psutil

from bench import candidates, requests
from bench.benchmark import LEADVIEW, Measure, MeasurementFailed, Metric, Subject, Target, Values
from bench.cores import pinned, worker_cores
from bench.filling import fill, intents_of
from bench.lab import Lab
from bench.load import Load
from bench.traffic import Traffic
from devstack.redis_cluster import RedisCluster
from devstack.redis_server import RedisServer
from projector.intent import Intent
from projector.ledger.checkpoint import Position, Step, Stored
from projector.ledger.ledger import Ledger
from projector.ledger.session import Session, Sessions
from projector.line.pace import FULL
from projector.record import Partition
from projector.redis.applier import Applier
from projector.redis.calls import Generations
from projector.redis.store import Store
from schemas.settings import ProjectorSettings

CPU, REDIS_CPU = Metric("CPU", "µs"), Metric("Redis CPU", "µs")
SHARDS = 64
ONE, CLUSTER = "one Redis", f"{SHARDS} shards"
RECORD, TWICE, CHECKPOINT, REQUEST = "record", "record in two generations", "checkpoint", "request"
_QUICK_SHARDS = 3
_RECORDS, _QUICK_RECORDS = 20_000, 1_000
_CHECKPOINTS, _QUICK_CHECKPOINTS = 500, 20
_PARTITIONS = 4
_CONNECTIONS, _SECONDS = 64, 5.0


class ClusterCosts:
    name = "cluster-costs"
    what = (
        "The CPU time of the same work with one Redis and with a cluster of 64 shards, in the process that does it and "
        "in Redis (all shards together): to write a record, without reading and decoding it, into one generation or "
        "into two; to store the positions of four partitions; to serve a request, over 64 connections. The records and "
        "requests belong to 200 organizations."
    )
    metrics = (CPU, REDIS_CPU)
    subjects = (Subject(LEADVIEW, "leadview", "the projector's code in this process, and an API worker"),)
    targets: Sequence[Target] = ()
    rounds = 3
    restarts_each_round = False

    def cases(self, lab: Lab) -> Sequence[str]:  # noqa: ARG002 - required by Benchmark
        return tuple(case(work, where) for work in (RECORD, TWICE, CHECKPOINT, REQUEST) for where in (ONE, CLUSTER))

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        cores = worker_cores()
        one = lab.redis(stack, "redis", cores)
        with pinned(cores.redis):
            shards = _QUICK_SHARDS if lab.quick else SHARDS
            cluster = stack.enter_context(RedisCluster(lab.directory / "cluster", shards))
        traffic = Traffic()
        contacts, leads = traffic.contacts_and_leads(_QUICK_RECORDS if lab.quick else _RECORDS)
        for redis in (one, cluster):
            fill(redis, [*traffic.access, *contacts, *leads])
        places = {
            ONE: _Place(lab, stack, one, [one], traffic),
            CLUSTER: _Place(lab, stack, cluster, cluster.primaries, traffic),
        }

        def measure(name: str) -> Values:
            work, _, where = name.partition(", ")
            with pinned(cores.worker):
                return places[where].measure(work)

        return {LEADVIEW: measure}


def case(work: str, where: str) -> str:
    """The name of a case."""
    return f"{work}, {where}"


class _Place:
    """One Redis or a cluster, with these organizations and records, and an API worker that serves them."""

    def __init__(
        self,
        lab: Lab,
        stack: ExitStack,
        redis: RedisServer | RedisCluster,
        servers: Sequence[RedisServer],
        traffic: Traffic,
    ) -> None:
        self._lab, self._traffic, self._url = lab, traffic, redis.url
        self._processes = [psutil.Process(server.pid) for server in servers]
        self._api = candidates.leadview(lab, stack, redis, worker_cores())
        for_leads = requests.for_leads(traffic.tenants)
        self._api.wait_until_ready(for_leads[0])
        self._load = Load(lab, for_leads, worker_cores().load)

    def measure(self, work: str) -> Values:
        if work == REQUEST:
            return self._requests()
        if work == CHECKPOINT:
            return self._checkpoints()
        return self._records((1, 2) if work == TWICE else (1,))

    def _requests(self) -> Values:
        before, redis_before = self._api.cpu_seconds(), self._redis_cpu_seconds()
        answered = self._load.closed(self._api.port, _CONNECTIONS, self._lab.seconds(_SECONDS)).answered
        return _values(self._api.cpu_seconds() - before, self._redis_cpu_seconds() - redis_before, answered)

    def _records(self, generations: Generations) -> Values:
        records = list(intents_of(self._traffic.documents(_QUICK_RECORDS if self._lab.quick else _RECORDS)))
        slices = [records[start : start + FULL.slice_records] for start in range(0, len(records), FULL.slice_records)]
        return self._run(partial(_write, slices, generations), len(records))

    def _checkpoints(self) -> Values:
        count = _QUICK_CHECKPOINTS if self._lab.quick else _CHECKPOINTS
        return self._run(partial(_cover, count), count)

    def _run(self, work: Callable[[Store, Session], Awaitable[None]], count: int) -> Values:
        """Let this process do the work, which is `count` items. The connections are opened before the measurement."""

        async def run() -> Values:
            store = Store(ProjectorSettings(redis_url=self._url))
            try:
                session = await Sessions(store).open()
                cpu, redis_cpu = time.process_time(), self._redis_cpu_seconds()
                await work(store, session)
                return _values(time.process_time() - cpu, self._redis_cpu_seconds() - redis_cpu, count)
            finally:
                await store.close()

        return asyncio.run(run())

    def _redis_cpu_seconds(self) -> float:
        return float(sum(sum(process.cpu_times()[:2]) for process in self._processes))


async def _write(slices: Sequence[Sequence[Intent]], generations: Generations, store: Store, session: Session) -> None:
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
