"""The projector on Apache Kafka: real records of about 900 bytes, one process."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from uuid import uuid4

import psutil
from redis import Redis

from bench import consuming_peers, pipeline, projectors
from bench.benchmark import OURS, Bar, Measure, MeasurementFailed, Metric, Subject, Values
from bench.consuming_peers import CPU, QUIX, QUIX_PYTHON, RATE, Topics
from bench.cores import pinned, place
from bench.lab import Lab, client
from bench.traffic import Traffic, publish
from devstack.apache_kafka import ApacheKafka
from devstack.child import Child
from devstack.redis_server import RedisServer
from schemas import names

_REDIS_CPU = Metric("Redis CPU a record", "µs")
NEW, APPLIED = "new records", "already applied"
PARTITIONS = 4
_RECORDS, _QUICK_RECORDS = 150_000, 3_000
ONE_AT_A_TIME = 10_000
_TIMEOUT_SECONDS = 120.0


class Projector:
    name = "projector"
    what = (
        "Records of about 900 bytes, 70 % leads and 30 % contacts with 1 to 5 leads each, in any order, from Apache "
        "Kafka into Redis by one process; and the same records once more, when all of them have been applied."
    )
    metrics = (RATE, CPU, _REDIS_CPU)
    subjects = (
        Subject(OURS, "leadview", "`python -m projector run`"),
        *consuming_peers.SUBJECTS,
        QUIX,
    )
    bars = (
        Bar(RATE.name, NEW, 0.5, at_least=True, against="plain-set"),
        Bar(RATE.name, NEW, 10.0, at_least=True, against="one-at-a-time"),
        Bar(RATE.name, NEW, 40_000.0, at_least=True),
        Bar(RATE.name, APPLIED, 2.0, at_least=True, case_against=NEW),
    )
    rounds = 5
    anew = False

    def cases(self, lab: Lab) -> Sequence[str]:  # noqa: ARG002 - the shape of a benchmark
        return (NEW, APPLIED)

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        if pipeline.missing(lab, self.name):
            return {}
        cores = place()
        with pinned(cores.redis):
            kafka = stack.enter_context(ApacheKafka.start(lab.directory / "kafka"))
        redis = lab.redis(stack, "redis", cores)
        topics = Topics(kafka.bootstrap_servers, PARTITIONS, _QUICK_RECORDS if lab.quick else _RECORDS)
        projectors.create_topics(kafka, PARTITIONS)
        publish(topics.kafka, Traffic().documents(topics.count))
        connection = stack.enter_context(client(redis))
        peer = partial(consuming_peers.measure, topics=topics, redis_url=redis.url, parts=1, cores=cores.worker)
        measures = {
            "plain-set": partial(peer, "plain_set"),
            "one-at-a-time": partial(peer, "one_at_a_time", most=min(topics.count, ONE_AT_A_TIME)),
            "one-set-at-a-time": partial(peer, "one_set_at_a_time", most=min(topics.count, ONE_AT_A_TIME)),
        }
        if QUIX_PYTHON.exists():
            measures[QUIX.name] = partial(consuming_peers.measure_quix, topics, redis.url, cores.worker)
        else:
            lab.leave_out(QUIX.name, "not installed (make bench-quix)")
        return {OURS: partial(_projector, lab, topics, redis, connection)} | {
            name: partial(_new_only, connection, measure) for name, measure in measures.items()
        }


def _new_only(redis: Redis, measure: Callable[[], Values], case: str) -> Values:
    """Peers have no other case: they write whatever comes."""
    if case != NEW:
        return {}
    redis.flushall()
    return measure()


def _projector(lab: Lab, topics: Topics, server: RedisServer, redis: Redis, case: str) -> Values:
    """From the first checkpoint to the last: starting and joining the group are left out."""
    if case == NEW:
        redis.flushall()
    elif projectors.covered(redis, PARTITIONS) < topics.count:  # a peer has emptied it since
        _projector(lab, topics, server, redis, NEW)
    if case == APPLIED:
        redis.delete(names.POSITIONS)
    child = projectors.start(lab, topics.kafka, server.url, cores=place().worker, group=uuid4().hex)
    try:
        return _time(child, server, redis, topics.count)
    finally:
        child.stop()


def _time(child: Child, server: RedisServer, redis: Redis, count: int) -> Values:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    began: tuple[float, float, float, int] | None = None
    while (done := projectors.covered(redis, PARTITIONS)) < count:
        if done and began is None:
            began = (time.monotonic(), _cpu(child.pid), _cpu(server.pid), done)
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"the projector did not apply {count} records in {_TIMEOUT_SECONDS:g} s")
        time.sleep(0.005)
    if began is None:
        return {}
    at, cpu, redis_cpu, before = began
    records = done - before
    return {
        RATE.name: records / (time.monotonic() - at),
        CPU.name: (_cpu(child.pid) - cpu) / records * 1e6,
        _REDIS_CPU.name: (_cpu(server.pid) - redis_cpu) / records * 1e6,
    }


def _cpu(pid: int) -> float:
    """User and system time so far, in seconds."""
    return float(sum(psutil.Process(pid).cpu_times()[:2]))
