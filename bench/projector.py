"""The projector on Apache Kafka: one process, records of about 900 bytes."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from redis import Redis

from bench import consuming_peers, pipeline, projectors
from bench.benchmark import LEADVIEW, Measure, Subject, Target, Values
from bench.consuming_peers import CPU, RATE, Peer, Topics
from bench.cores import pinned, worker_cores
from bench.lab import Lab, client
from bench.traffic import Traffic, publish
from devstack.apache_kafka import ApacheKafka
from devstack.redis_server import RedisServer
from schemas import names

NEW, APPLIED = "new records", "already applied"
PARTITIONS = 4
_RECORDS, _QUICK_RECORDS = 150_000, 3_000


class Projector:
    name = "projector"
    what = (
        "One process applies records of about 900 bytes from Apache Kafka to Redis: 70 % leads, 30 % contacts with 1 "
        "to 5 leads each, in random order. Then it reads the same records again, which are already applied."
    )
    metrics = projectors.METRICS
    subjects = (
        Subject(LEADVIEW, "leadview", "`python -m projector run`"),
        *consuming_peers.SUBJECTS,
        consuming_peers.QUIX,
    )
    targets = (
        Target(RATE.name, NEW, 0.5, at_least=True, against="plain-set"),
        Target(CPU.name, NEW, 2.0, at_least=False, against="plain-set"),
        Target(RATE.name, NEW, 10.0, at_least=True, against="one-at-a-time"),
        Target(RATE.name, NEW, 40_000.0, at_least=True),
        Target(RATE.name, APPLIED, 3.0, at_least=True, case_against=NEW),
    )
    rounds = 5
    restarts_each_round = False

    def cases(self, lab: Lab) -> Sequence[str]:  # noqa: ARG002 - required by Benchmark
        return (NEW, APPLIED)

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        if pipeline.kafka_is_missing(lab, self.name):
            return {}
        cores = worker_cores()
        with pinned(cores.redis):
            kafka = stack.enter_context(ApacheKafka.start(lab.directory / "kafka"))
        redis = lab.redis(stack, "redis", cores)
        topics = Topics(kafka.bootstrap_servers, PARTITIONS, _QUICK_RECORDS if lab.quick else _RECORDS)
        projectors.create_topics(kafka, PARTITIONS)
        publish(topics.kafka, Traffic().documents(topics.count))
        connection = stack.enter_context(client(redis))
        return {LEADVIEW: partial(_projector, lab, topics, redis, connection)} | {
            peer.name: partial(_new_only, connection, partial(_peer, peer, topics, redis))
            for peer in consuming_peers.runnable(lab)
        }


def _new_only(redis: Redis, measure: Callable[[], Values], case: str) -> Values:
    """Peers have no other case: they write every record, whether it is applied already or not."""
    if case != NEW:
        return {}
    redis.flushall()
    return measure()


def _peer(peer: Peer, topics: Topics, server: RedisServer) -> Values:
    most_records = min(topics.count, consuming_peers.ONE_AT_A_TIME) if peer.awaits_writes else 0
    return peer.measure(topics, server.url, worker_cores().worker, most_records)


def _projector(lab: Lab, topics: Topics, server: RedisServer, redis: Redis, case: str) -> Values:
    if case == NEW:
        redis.flushall()
    elif projectors.covered(redis, PARTITIONS) < topics.count:  # a peer has emptied Redis since
        _projector(lab, topics, server, redis, NEW)
    if case == APPLIED:
        positions = [field for field in redis.hkeys(names.CONTROL) if b":" in field]
        redis.hdel(names.CONTROL, *positions)
    return projectors.measure(lab, topics, server, worker_cores().worker)
