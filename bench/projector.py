"""The projector on Apache Kafka: real records of about 900 bytes, one process."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from uuid import uuid4

import psutil
from redis import Redis

from bench import consuming_peers, pipeline, projectors
from bench.benchmark import OURS, Bar, Measure, MeasurementFailed, Subject, Values
from bench.consuming_peers import CPU, QUIX, QUIX_PYTHON, RATE, Topics
from bench.cores import pinned, place
from bench.lab import Lab, client
from bench.traffic import Traffic, publish
from devstack.apache_kafka import ApacheKafka
from devstack.child import Child
from schemas import names

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
    metrics = (RATE, CPU)
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
        }
        if QUIX_PYTHON.exists():
            measures[QUIX.name] = partial(consuming_peers.measure_quix, topics, redis.url, cores.worker)
        else:
            lab.leave_out(QUIX.name, "not installed (make bench-quix)")
        return {OURS: partial(_projector, lab, topics, redis.url, connection)} | {
            name: partial(_new_only, connection, measure) for name, measure in measures.items()
        }


def _new_only(redis: Redis, measure: Callable[[], Values], case: str) -> Values:
    """Peers have no other case: they write whatever comes."""
    if case != NEW:
        return {}
    redis.flushall()
    return measure()


def _projector(lab: Lab, topics: Topics, url: str, redis: Redis, case: str) -> Values:
    """From the first checkpoint to the last: starting and joining the group are left out."""
    if case == NEW:
        redis.flushall()
    else:
        redis.delete(names.POSITIONS)
    child = projectors.start(lab, topics.kafka, url, cores=place().worker, group=uuid4().hex)
    try:
        return _time(child, redis, topics.count)
    finally:
        child.stop()


def _time(child: Child, redis: Redis, count: int) -> Values:
    process = psutil.Process(child.pid)
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    began: tuple[float, float, int] | None = None
    while (done := projectors.covered(redis, PARTITIONS)) < count:
        if done and began is None:
            began = (time.monotonic(), sum(process.cpu_times()[:2]), done)
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"the projector did not apply {count} records in {_TIMEOUT_SECONDS:g} s")
        time.sleep(0.005)
    if began is None:
        return {}
    records = done - began[2]
    seconds = time.monotonic() - began[0]
    return {RATE.name: records / seconds, CPU.name: (sum(process.cpu_times()[:2]) - began[1]) / records * 1e6}
