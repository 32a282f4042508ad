"""The projector on Apache Kafka: real records of about 900 bytes, one process."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

from redis import Redis

from bench import consuming_peers, pipeline, projectors
from bench.benchmark import OURS, Bar, Measure, Subject, Values
from bench.consuming_peers import RATE, Topics
from bench.cores import pinned, place
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
        "Records of about 900 bytes, 70 % leads and 30 % contacts with 1 to 5 leads each, in any order, from Apache "
        "Kafka into Redis by one process; and the same records once more, when all of them have been applied."
    )
    metrics = projectors.METRICS
    subjects = (
        Subject(OURS, "leadview", "`python -m projector run`"),
        *consuming_peers.SUBJECTS,
        consuming_peers.QUIX,
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
        return {OURS: partial(_projector, lab, topics, redis, connection)} | {
            peer.name: partial(_new_only, connection, partial(peer.measure, topics, redis.url, cores.worker))
            for peer in consuming_peers.runnable(lab)
        }


def _new_only(redis: Redis, measure: Callable[[], Values], case: str) -> Values:
    """Peers have no other case: they write whatever comes."""
    if case != NEW:
        return {}
    redis.flushall()
    return measure()


def _projector(lab: Lab, topics: Topics, server: RedisServer, redis: Redis, case: str) -> Values:
    if case == NEW:
        redis.flushall()
    elif projectors.covered(redis, PARTITIONS) < topics.count:  # a peer has emptied it since
        _projector(lab, topics, server, redis, NEW)
    if case == APPLIED:
        redis.delete(names.POSITIONS)
    return projectors.measure(lab, topics, server, place().worker)
