"""Growth: what each kind of work costs, and what it costs if something becomes ten times as much. Commands, records and
entities are counted, so that the results do not depend on the machine.
"""

import asyncio
import logging
import subprocess
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from tempfile import mkdtemp
from uuid import uuid4

import msgspec
import psutil
from msgspec import Struct
from msgspec.structs import replace

from bench import consumers, pipeline
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
from bench.crm import FIRST_VERSION, Crm, marked, newer, of_contact, publish
from bench.filling import fill, intents, live
from bench.machine import Cores
from bench.masters import masters
from bench.outcome import Outcome
from devstack.apache_kafka import ApacheKafka
from devstack.programs import PROJECTOR, ROOT, Program, environment, while_running
from devstack.redis_server import RedisServer
from devstack.waiting import wait_until
from projector.ledger.ledger import Sessions
from projector.ledger.writers import Writing
from projector.line.apply import apply
from projector.record import Record
from projector.redis.store import Store
from projector.upkeep import jobs, reapply
from schemas import control, names
from schemas.heartbeat import Heartbeat
from schemas.resources import BY_TOPIC, ORGANIZATION
from schemas.settings import ProjectorSettings

COMMANDS = Metric("commands of Redis", "")
IDLE = Metric("commands of Redis in an idle second", "")
RECORDS = Metric("records from Kafka", "")
ENTITIES = Metric("entities in memory at once", "")
MEMORY = Metric("megabytes of the process", "")
READINGS = Metric("readings of all topics", "")
_QUICK_SHARE = 10
"""A quick run has this many times fewer keys and records."""
_LEADS_OF_DELETED = 5
_ENTITIES_OF_ONE = 20
_KEYS_AT_ONCE = 1_000
_LATER = 1_000_000
"""The distance, in offsets, from all other records."""
_IDLE_SECONDS, _QUICK_IDLE_SECONDS = 10.0, 2.0
_READY_SECONDS = 180.0
TIMES = 10
VERIFY_MEMORY = 1
"""Megabytes: few enough that 15,000 entities need several parts."""
_SETTLED = 0.9
"""When a second has at least this share of the commands of the one before, the start of the projectors is over."""
_SAMPLE_SECONDS = 0.02

Case = Callable[[Lab, ApacheKafka], Values]
"""Counts one case, with topics of this Kafka that no other case has."""


class Growth(Struct, frozen=True):
    """How a figure grows between two cases, of which the second one has ten times as many of something: first `first`.
    It becomes `most` times as much at most.
    """

    work: str
    what: str
    first: int
    metric: Metric
    few: str
    many: str
    most: float

    def ratio(self, outcome: Outcome) -> float | None:
        """Returns how many times as much it becomes; None if it was not measured."""
        few, many = self._medians(outcome)
        return many / few if few and many else None

    def slope(self, outcome: Outcome) -> float | None:
        """Returns how much each further one costs; None if it was not measured."""
        few, many = self._medians(outcome)
        return (many - few) / (TIMES - 1) / self.first if few and many else None

    def _medians(self, outcome: Outcome) -> tuple[float, float]:
        spreads = (outcome.spread(case, LEADVIEW, self.metric.name) for case in (self.few, self.many))
        few, many = (spread.median if spread else 0.0 for spread in spreads)
        return few, many


def _fan_out(lab: Lab, _kafka: ApacheKafka, *, changes: int, leads: int) -> Values:
    crm = Crm()
    access, contact, first = [*crm.organization()], *crm.lead_and_contact(crm.tenants[0])
    others = [of_contact(contact, *crm.lead_and_contact(crm.tenants[0])) for _ in range(leads - 1)]
    events = [marked(contact, FIRST_VERSION + number) for number in range(changes)]
    with ExitStack() as stack:
        redis = lab.redis(stack, Cores())
        fill(redis, [*access, contact, first, *others])
        with client(redis) as connection:
            generation = live(connection)
        commands = stack.enter_context(counted(redis))

        async def write(writing: Writing) -> None:
            await apply(writing.store, list(intents(events)), (generation,))

        _do(ProjectorSettings(redis_url=redis.url), write)
        return {COMMANDS.name: commands()}


def _erasure(lab: Lab, kafka: ApacheKafka, *, deletions: int, keys: int) -> Values:
    crm = Crm()
    records = list(crm.records(deletions, 2 * _LEADS_OF_DELETED * deletions))
    with ExitStack() as stack:
        redis = lab.redis(stack, Cores())
        _add_keys(redis, _size(lab, keys))
        fill(redis, records)
        fill(redis, _deletions(records))
        commands = stack.enter_context(counted(redis))
        _do_jobs(ProjectorSettings(redis_url=redis.url, kafka_bootstrap_servers=kafka.bootstrap_servers), redis)
        return {COMMANDS.name: commands()}


def _recreation(lab: Lab, kafka: ApacheKafka, *, organizations: int, records: int) -> Values:
    prefix, of_others, crm = _topics(kafka), Crm(), Crm()
    publish(kafka.bootstrap_servers, of_others.records(10, _size(lab, records)), prefix)
    own = list(crm.records(organizations, 2 * _LEADS_OF_DELETED * organizations))
    publish(kafka.bootstrap_servers, own, prefix)
    with ExitStack() as stack:
        redis = lab.redis(stack, Cores())
        fill(redis, (record for record in own if record.kind is ORGANIZATION))
        fill(redis, _deletions(own))
        fill(redis, _recreations(own))
        settings = ProjectorSettings(
            redis_url=redis.url, kafka_bootstrap_servers=kafka.bootstrap_servers, topic_prefix=prefix
        )
        with _records_read_again() as read:
            _do_jobs(settings, redis)
        return {RECORDS.name: sum(read)}


def _verification(lab: Lab, kafka: ApacheKafka, *, entities: int) -> Values:
    prefix, crm = _topics(kafka), Crm()
    publish(kafka.bootstrap_servers, crm.records(entities // _ENTITIES_OF_ONE, entities), prefix)
    with ExitStack() as stack:
        redis = lab.redis(stack, Cores())
        connection = stack.enter_context(client(redis))
        with consumers.start_projector(
            lab, kafka.bootstrap_servers, redis.url, cores=None, prefix=prefix, group=prefix
        ) as projector:
            applied = while_running(
                projector,
                lambda: (
                    consumers.covered(connection, prefix) >= entities and connection.hget(names.CONTROL, control.FILLED)
                ),
            )
            wait_until(applied, "everything is applied", _READY_SECONDS)
        variables = environment(
            redis_url=redis.url,
            kafka_bootstrap_servers=kafka.bootstrap_servers,
            topic_prefix=prefix,
            group_id=prefix,
            verify_memory=VERIFY_MEMORY,
        )
        printed, most = _run([*PROJECTOR, "verify", "--json"], variables)
    report = msgspec.json.decode(printed, type=_Report)
    if report.differences:
        raise MeasurementFailed(f"verify has found {report.differences} differences")
    return {ENTITIES.name: report.held, READINGS.name: report.parts, MEMORY.name: most / 1e6}


class _Report(Struct):
    """What `verify --json` prints."""

    held: int
    parts: int
    differences: int


def _run(command: Sequence[str], variables: Mapping[str, str]) -> tuple[bytes, int]:
    """Run a program to its end. Returns what it has printed, and the most memory that it had."""
    most = 0
    with subprocess.Popen(
        command, env=variables, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as running:
        process = psutil.Process(running.pid)
        while running.poll() is None:
            most = max(most, _memory(process))
            time.sleep(_SAMPLE_SECONDS)
        printed = running.stdout.read() if running.stdout else b""
    return printed, most


def _memory(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def _idle(
    lab: Lab, kafka: ApacheKafka, *, projectors: int = 1, partitions: int = consumers.PARTITIONS, shards: int = 0
) -> Values:
    """`shards` are the masters of a cluster; 0 for one Redis."""
    prefix = _topics(kafka, partitions)
    with ExitStack() as stack:
        if shards:
            directory = Path(mkdtemp(dir=lab.directory, prefix="redis-"))
            redis = stack.enter_context(RedisServer.start(directory, cluster=True))
            simulated = stack.enter_context(masters(redis.port, shards))
            url = simulated.url
        else:
            redis, simulated = lab.redis(stack, Cores()), None
            url = redis.url
        executed = stack.enter_context(counted(redis))

        def commands() -> int:
            return executed() + (simulated.answered if simulated else 0)

        started = [
            stack.enter_context(
                consumers.start_projector(lab, kafka.bootstrap_servers, url, cores=None, prefix=prefix, group=prefix)
            )
            for _ in range(projectors)
        ]
        wait_until(lambda: _share(redis, started, len(BY_TOPIC) * partitions), "all projectors work", _READY_SECONDS)
        return {IDLE.name: _settled(commands, _QUICK_IDLE_SECONDS if lab.quick else _IDLE_SECONDS)}


def _share(redis: RedisServer, projectors: Sequence[Program], partitions: int) -> bool:
    """Returns whether the projectors share all partitions, and have read them to their ends. Raises ServerFailed."""
    for projector in projectors:
        projector.check_well()
    with client(redis) as connection:
        stored = connection.hvals(names.WRITERS)
        is_filled = connection.hget(names.CONTROL, control.FILLED)
    heartbeats = [msgspec.json.decode(value.partition(b" ")[2], type=Heartbeat) for value in stored]
    shared = sum(sum(heartbeat.partitions.values()) for heartbeat in heartbeats)
    return bool(is_filled) and len(heartbeats) == len(projectors) and shared == partitions


def _settled(commands: Callable[[], int], seconds: float) -> float:
    """Returns how many commands come in a second when they do not become fewer any more."""
    last = inf
    while True:
        before, began = commands(), time.monotonic()
        time.sleep(seconds)
        rate = (commands() - before) / (time.monotonic() - began)
        if rate >= _SETTLED * last:
            return rate
        last = rate


_CASES: Mapping[str, Case] = {
    "10 changes, 1,000 leads": partial(_fan_out, changes=10, leads=1_000),
    "100 changes, 1,000 leads": partial(_fan_out, changes=100, leads=1_000),
    "10 changes, 10,000 leads": partial(_fan_out, changes=10, leads=10_000),
    "1 deletion, 100,000 keys": partial(_erasure, deletions=1, keys=100_000),
    "1 deletion, 1,000,000 keys": partial(_erasure, deletions=1, keys=1_000_000),
    "10 deletions, 1,000,000 keys": partial(_erasure, deletions=10, keys=1_000_000),
    "1 recreation, 10,000 records": partial(_recreation, organizations=1, records=10_000),
    "1 recreation, 100,000 records": partial(_recreation, organizations=1, records=100_000),
    "10 recreations, 100,000 records": partial(_recreation, organizations=10, records=100_000),
    "verify, 1,500 entities": partial(_verification, entities=1_500),
    "verify, 15,000 entities": partial(_verification, entities=15_000),
    "1 projector, 4 partitions": _idle,
    "10 projectors, 4 partitions": partial(_idle, projectors=10),
    "1 projector, 40 partitions": partial(_idle, partitions=40),
    "1 projector, 3 masters": partial(_idle, shards=3),
    "1 projector, 30 masters": partial(_idle, shards=30),
}
_FEW_LEADS, _MANY_LEADS = "10 changes, 1,000 leads", "10 changes, 10,000 leads"
_MANY_KEYS, _MANY_RECORDS = "1 deletion, 1,000,000 keys", "1 recreation, 100,000 records"
_VERIFY_FEW, _VERIFY_MANY = "verify, 1,500 entities", "verify, 15,000 entities"
_ALONE = "1 projector, 4 partitions"
BY_LEADS = Growth("a contact changes", "leads of the contact", 1_000, COMMANDS, _FEW_LEADS, _MANY_LEADS, 11.0)
BY_KEYS = Growth("an erasure", "keys of others", 100_000, COMMANDS, "1 deletion, 100,000 keys", _MANY_KEYS, 11.0)
BY_RECORDS = Growth(
    "a recreation", "records of others", 10_000, RECORDS, "1 recreation, 10,000 records", _MANY_RECORDS, 11.0
)
BY_ENTITIES = Growth("`verify`", "entities", 1_500, READINGS, _VERIFY_FEW, _VERIFY_MANY, 15.0)
BY_PROJECTORS = Growth("idle", "projectors", 1, IDLE, _ALONE, "10 projectors, 4 partitions", 7.5)
BY_MASTERS = Growth("idle", "masters", 3, IDLE, "1 projector, 3 masters", "1 projector, 30 masters", 11.0)
GROWTHS = (
    Growth("a contact changes", "changes in a batch", 10, COMMANDS, _FEW_LEADS, "100 changes, 1,000 leads", 2.0),
    BY_LEADS,
    Growth("an erasure", "deletions", 1, COMMANDS, _MANY_KEYS, "10 deletions, 1,000,000 keys", 2.0),
    BY_KEYS,
    Growth("a recreation", "recreations", 1, RECORDS, _MANY_RECORDS, "10 recreations, 100,000 records", 1.5),
    BY_RECORDS,
    Growth("`verify`", "entities", 1_500, ENTITIES, _VERIFY_FEW, _VERIFY_MANY, 1.5),
    Growth("`verify`", "entities", 1_500, MEMORY, _VERIFY_FEW, _VERIFY_MANY, 2.0),
    BY_ENTITIES,
    BY_PROJECTORS,
    Growth("idle", "partitions of each topic", 4, IDLE, _ALONE, "1 projector, 40 partitions", 1.5),
    BY_MASTERS,
)


def _prepare(lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
    kafka = pipeline.start_kafka(lab, stack, None)

    def measure(case: str) -> Values:
        return _CASES[case](lab, kafka)

    return {LEADVIEW: measure}


@contextmanager
def counted(redis: RedisServer) -> Iterator[Callable[[], int]]:
    """Yields what returns how many commands Redis has executed for others since, with those of their scripts."""
    with client(redis) as connection:

        def executed() -> int:
            return sum(int(found["calls"]) for found in connection.info("commandstats").values())

        own, before = count(1), executed()
        yield lambda: executed() - before - next(own)


def _do(settings: ProjectorSettings, work: Callable[[Writing], Awaitable[object]]) -> None:
    async def done() -> None:
        store = Store(settings)
        try:
            await work(Writing(store, Sessions(store)))
        finally:
            await store.close()

    asyncio.run(done())


def _do_jobs(settings: ProjectorSettings, redis: RedisServer) -> None:
    """Do all jobs that are due. Raises MeasurementFailed if there are none, or if some are left."""
    with client(redis) as connection:
        before = connection.scard(names.JOBS)
        _do(settings, lambda writing: jobs.run_all(writing, settings))
        if not before or connection.scard(names.JOBS):
            raise MeasurementFailed(f"of {before} jobs, {connection.scard(names.JOBS)} are left")


@contextmanager
def _records_read_again() -> Iterator[list[int]]:
    """Yields a list that gets the number of records of each reading of the topics by this process."""
    read: list[int] = []

    class Readings(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            read.append(record.read)  # type: ignore[attr-defined]

    handler = Readings()
    reapply.logger.addHandler(handler)
    reapply.logger.setLevel(logging.INFO)
    try:
        yield read
    finally:
        reapply.logger.removeHandler(handler)


def _add_keys(redis: RedisServer, keys: int) -> None:
    """Store this number of keys of another organization."""
    owner = names.organization(str(uuid4()))
    with client(redis) as connection:
        for start in range(0, keys, _KEYS_AT_ONCE):
            connection.mset({owner + b"l%022d" % number: b"" for number in range(start, start + _KEYS_AT_ONCE)})


def _deletions(records: Iterable[Record]) -> list[Record]:
    """Returns the tombstones of all organizations among these records."""
    organizations = [record for record in records if record.kind is ORGANIZATION]
    return [replace(record, value=None, offset=record.offset + _LATER) for record in organizations]


def _recreations(records: Iterable[Record]) -> list[Record]:
    """Returns a newer record of each organization among these records, behind its tombstone."""
    organizations = [record for record in records if record.kind is ORGANIZATION]
    return [replace(newer(record), offset=record.offset + 2 * _LATER) for record in organizations]


def _topics(kafka: ApacheKafka, partitions: int = consumers.PARTITIONS) -> str:
    """Create all topics with a new prefix, which is returned."""
    prefix = f"{uuid4().hex}."
    for topic in BY_TOPIC:
        kafka.create_topic(prefix + topic, partitions)
    return prefix


def _size(lab: Lab, size: int) -> int:
    return size // _QUICK_SHARE if lab.quick else size


BENCHMARK = Benchmark(
    name="growth",
    what=(
        "What work costs, and what it costs if something becomes ten times as much: commands of Redis (as INFO "
        "commandstats counts them, with those of scripts), records that are read from Kafka, and entities that are "
        "kept in memory. Nothing is timed. A cluster is simulated with one Redis, whose slot map names many masters."
    ),
    metrics=(COMMANDS, RECORDS, ENTITIES, MEMORY, READINGS, IDLE),
    subjects=(Subject(LEADVIEW, "leadview", "the projector's own code, `verify`, and idle projectors"),),
    cases=tuple(_CASES),
    prepare=_prepare,
    targets=tuple(
        Target(growth.metric.name, growth.many, growth.most, at_least=False, case_against=growth.few)
        for growth in GROWTHS
    ),
    needs_kafka=True,
    counts=True,
    rounds=1,
)
