"""The projector's throughput by the number of partitions and processes."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from uuid import uuid4

import psutil
from confluent_kafka import ConsumerGroupState, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # it is documented

from bench import consuming_peers, pipeline, projectors
from bench.benchmark import LEADVIEW, Measure, Subject, Target, Values
from bench.consuming_peers import CPU, ONE_AT_A_TIME, RATE, SUBJECTS, Topics
from bench.cores import pinned, worker_cores
from bench.lab import Lab, client
from bench.server import cpu_seconds
from bench.traffic import Traffic, publish
from devstack.apache_kafka import ApacheKafka
from devstack.child import Child
from devstack.topics import admin
from devstack.waiting import wait_until
from projector.ledger.control import Position, first_state, new_copy_fields, shared_fields
from schemas import names
from schemas.control import Stamp

_RECORDS, _QUICK_RECORDS = 120_000, 10_000
_PEERS_AT = "4 partitions, 2 processes"
_CASES = ((1, 1), (1, 2), (2, 1), (2, 2), (4, 1), (4, 2), (8, 1), (8, 2), (8, 4), (8, 8))
"""Partitions and processes."""
_TIMEOUT_SECONDS = 600.0
_PAUSE_SECONDS = 1.2
"""Longer than a line waits between two checks of its positions, so it checks them as soon as it resumes."""


class ProjectorProcesses:
    name = "projector-processes"
    what = (
        "The new records of `projector`, by the number of partitions of each of the two topics and the number of "
        "processes. As many processes as cores, or more, are not pinned: they share the cores with Redis and Kafka. "
        "Beyond the cores of this machine, the rate says nothing, but the CPU time of a record says what more cores "
        "would achieve."
    )
    metrics = projectors.METRICS
    subjects = (Subject(LEADVIEW, "leadview", "`python -m projector run --processes N`"), *SUBJECTS[:2])
    targets = (Target(RATE.name, _PEERS_AT, 0.5, at_least=True, against="plain-set"),)
    rounds = 3
    restarts_each_round = False

    def cases(self, lab: Lab) -> Sequence[str]:
        if lab.quick:
            return (_PEERS_AT,)
        return tuple(_case(partitions, processes) for partitions, processes in _CASES)

    def prepare(self, lab: Lab, stack: ExitStack) -> Mapping[str, Measure]:
        if pipeline.kafka_is_missing(lab, self.name):
            return {}
        with pinned(worker_cores().redis):
            kafka = stack.enter_context(ApacheKafka.start(lab.directory / "kafka"))
        setup = _Setup(lab, stack, kafka.bootstrap_servers)
        records = Traffic().documents(_QUICK_RECORDS if lab.quick else _RECORDS)
        for partitions in sorted({_numbers(case)[0] for case in self.cases(lab)}):
            topics = Topics(kafka.bootstrap_servers, partitions, len(records), f"of{partitions}.")
            projectors.create_topics(kafka, partitions, topics.prefix)
            publish(topics.kafka, records, topics.prefix)
            setup.topics[partitions] = topics
        return {LEADVIEW: setup.leadview, "plain-set": setup.plain_set, "one-at-a-time": setup.one_at_a_time}


class _Setup:
    """A Kafka that holds the same records in topics with different numbers of partitions, and a Redis."""

    def __init__(self, lab: Lab, stack: ExitStack, kafka: str) -> None:
        self._lab = lab
        self._kafka = kafka
        self._admin = admin(kafka)
        self._server = lab.redis(stack, "redis", worker_cores())
        self._redis = stack.enter_context(client(self._server))
        self.topics: dict[int, Topics] = {}

    def leadview(self, case: str) -> Values:
        """The time starts when all processes are members of the group, and read from the beginning."""
        partitions, processes = _numbers(case)
        topics, group = self.topics[partitions], uuid4().hex
        self._redis.flushall()
        self._begin_at_the_ends(topics)
        with ExitStack() as stack:
            child = self._start(stack, topics, group, processes)
            wait_until(lambda: _members(self._admin, group) == processes, "all have joined the group", _TIMEOUT_SECONDS)
            parent = psutil.Process(child.pid)
            family = [parent, *parent.children()]
            for process in family:
                process.suspend()
            time.sleep(_PAUSE_SECONDS)
            self._redis.flushall()
            return self._time(family, topics)

    def plain_set(self, case: str) -> Values:
        return self._peer("plain_set", case)

    def one_at_a_time(self, case: str) -> Values:
        return self._peer("one_at_a_time", case, most_records=ONE_AT_A_TIME // 2)

    def _peer(self, module: str, case: str, most_records: int = 0) -> Values:
        if case != _PEERS_AT:
            return {}
        partitions, processes = _numbers(case)
        self._redis.flushall()
        cores = worker_cores(processes).worker
        return consuming_peers.measure(
            module, self.topics[partitions], self._server.url, processes, cores, most_records
        )

    def _start(self, stack: ExitStack, topics: Topics, group: str, processes: int) -> Child:
        cores = worker_cores(processes).worker
        words = ("run", "--processes", str(processes))
        child = projectors.start(
            self._lab, self._kafka, self._server.url, words, cores=cores, prefix=topics.prefix, group=group
        )
        stack.callback(child.stop)
        return child

    def _begin_at_the_ends(self, topics: Topics) -> None:
        """Write a control record with positions at the end of every partition, so that nothing is left to apply."""
        state = first_state((names.HOME.decode(),))
        self._redis.hset(names.CONTROL, mapping={**shared_fields(Stamp.first(), state), **new_copy_fields(state)})
        self._redis.hset(names.CONTROL, mapping=self._ends(topics))

    def _ends(self, topics: Topics) -> dict[str, bytes]:
        """The positions at the end of every partition."""
        wanted = {
            TopicPartition(topics.prefix + kind, number): OffsetSpec.latest()  # type: ignore[no-untyped-call]
            for kind in projectors.DOCUMENT_TOPICS
            for number in range(topics.partitions)
        }
        end_offsets = self._admin.list_offsets(wanted)
        return {
            names.position(at.topic, at.partition): Position(
                end_offset.result().offset, event_time=0, stored_at=0
            ).format()
            for at, end_offset in end_offsets.items()
        }

    def _time(self, family: Sequence[psutil.Process], topics: Topics) -> Values:
        """Resume the processes: they find an empty Redis, and read from the beginning."""
        redis = psutil.Process(self._server.pid)
        started, cpu, redis_cpu = time.monotonic(), cpu_seconds(family), cpu_seconds([redis])
        for process in family:
            process.resume()
        wait_until(
            lambda: projectors.covered(self._redis, topics.partitions, topics.prefix) >= topics.count,
            "all records are applied",
            _TIMEOUT_SECONDS,
        )
        return {
            RATE.name: topics.count / (time.monotonic() - started),
            CPU.name: (cpu_seconds(family) - cpu) / topics.count * 1e6,
            projectors.REDIS_CPU.name: (cpu_seconds([redis]) - redis_cpu) / topics.count * 1e6,
        }


def _case(partitions: int, processes: int) -> str:
    return f"{partitions} partition{'s' * (partitions > 1)}, {processes} process{'es' * (processes > 1)}"


def _numbers(case: str) -> tuple[int, int]:
    """The number of partitions, and the number of processes."""
    words = case.split()
    return int(words[0]), int(words[2])


def _members(client: AdminClient, group: str) -> int:
    """The number of members that have partitions; 0 until the group is stable."""
    try:
        group_now = client.describe_consumer_groups([group])[group].result(_TIMEOUT_SECONDS)
    except KafkaException:  # its coordinator does not exist yet
        return 0
    if group_now.state != ConsumerGroupState.STABLE:
        return 0
    return sum(bool(member.assignment.topic_partitions) for member in group_now.members)
