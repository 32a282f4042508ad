"""The projector on Apache Kafka: real records of about 900 bytes, one process."""

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from uuid import uuid4

import msgspec
import psutil
from redis import Redis

from bench import traffic
from bench.benchmark import OURS, Bar, Measure, MeasurementFailed, Metric, Subject, Values
from bench.cores import pinned, place
from bench.lab import Lab, client
from bench.peers.consuming import PARTITIONS, TOPICS
from bench.server import ROOT
from devstack.apache_kafka import ApacheKafka
from devstack.child import Child
from devstack.kafka_jars import why_unavailable
from schemas import names

RATE = Metric("rate", "records/s", more_is_better=True, chart=True)
CPU = Metric("CPU a record", "µs")
NEW, APPLIED = "new records", "already applied"
_RECORDS, _QUICK_RECORDS = 150_000, 3_000
_ONE_AT_A_TIME = 10_000
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
        Subject("plain-set", "limit", "getmany, decode, pipelined SET of the same bytes"),
        Subject("one-at-a-time", "peer", "`async for`, decode, await each SET"),
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
        if reason := why_unavailable():
            lab.leave_out("projector", reason)
            return {}
        cores = place()
        count = _QUICK_RECORDS if lab.quick else _RECORDS
        with pinned(cores.redis):
            kafka = stack.enter_context(ApacheKafka.start(lab.directory / "kafka"))
        redis = lab.redis(stack, "redis", cores)
        for topic in (*TOPICS, "crm.organizations", "crm.api-keys"):
            kafka.create_topic(topic, PARTITIONS)
        traffic.publish(kafka.bootstrap_servers, traffic.records(count))
        lab.leave_out("quix-streams", "not a dependency of ours, and not measured yet")
        with_servers = (kafka.bootstrap_servers, redis.url, stack.enter_context(client(redis)))
        return {
            OURS: partial(_projector, lab, count, *with_servers),
            "plain-set": partial(_peer, "plain_set", count, *with_servers),
            "one-at-a-time": partial(_peer, "one_at_a_time", min(count, _ONE_AT_A_TIME), *with_servers),
        }


def _projector(lab: Lab, count: int, kafka: str, url: str, redis: Redis, case: str) -> Values:
    """From the first checkpoint to the last: starting and joining the group are left out."""
    if case == NEW:
        redis.flushall()
    else:
        redis.delete(names.POSITIONS)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEADVIEW_")}
    environment |= {"LEADVIEW_REDIS_URL": url, "LEADVIEW_KAFKA_BOOTSTRAP_SERVERS": kafka}
    environment |= {"LEADVIEW_GROUP_ID": uuid4().hex, "PYTHONPATH": str(ROOT)}
    with pinned(place().worker):
        child = Child(
            [sys.executable, "-m", "projector", "run"], log=lab.directory / "projector.log", environment=environment
        )
    try:
        return _time(psutil.Process(child.pid), redis, count)
    finally:
        child.stop()


def _time(process: psutil.Process, redis: Redis, count: int) -> Values:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    began: tuple[float, float, int] | None = None
    while (done := _done(redis)) < count:
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


def _done(redis: Redis) -> int:
    """Records of the documents' topics that are covered by a checkpoint."""
    fields = [names.position(topic, partition) for topic in TOPICS for partition in range(PARTITIONS)]
    values: list[bytes | None] = redis.hmget(names.POSITIONS, fields)  # type: ignore[assignment]
    return sum(int(value.split()[0]) for value in values if value)


def _peer(module: str, count: int, kafka: str, url: str, redis: Redis, case: str) -> Values:
    if case != NEW:
        return {}
    redis.flushall()
    command = [sys.executable, "-m", f"bench.peers.{module}", kafka, url, str(count)]
    with pinned(place().worker):
        done = subprocess.run(command, capture_output=True, check=True, timeout=_TIMEOUT_SECONDS, cwd=ROOT)
    figures = msgspec.json.decode(done.stdout)
    return {
        RATE.name: figures["records"] / figures["seconds"],
        CPU.name: figures["cpu_seconds"] / figures["records"] * 1e6,
    }
