"""Runs the peers and limits that consume from Kafka (`bench/peers`)."""

import os
import subprocess
import sys
from collections.abc import Sequence
from urllib.parse import urlsplit
from uuid import uuid4

import msgspec
from msgspec import Struct

from bench.benchmark import MeasurementFailed, Metric, Subject, Values
from bench.cores import pinned
from bench.lab import Lab
from bench.server import ROOT
from bench.traffic import PREFIX
from schemas.resources import RESOURCES

RATE = Metric("rate", "records/s", more_is_better=True, chart=True)
CPU = Metric("CPU per record", "µs")
SUBJECTS = (
    Subject("plain-set", "limit", "getmany, decode, SET of the same bytes in pipelines"),
    Subject("one-at-a-time", "peer", "`async for`, awaits each write, until Redis holds the same documents"),
    Subject("one-set-at-a-time", "peer", "`async for`, awaits one SET for each record: no contact in leads"),
)
QUIX = Subject("quix-streams", "peer", "Quix Streams with its Redis sink")
QUIX_PYTHON = ROOT / "build" / "quix" / "bin" / "python"
ONE_AT_A_TIME = 10_000
"""Records in a measurement of a peer that awaits each write."""
_TIMEOUT_SECONDS = 600.0
_SCRIPT = ROOT / "bench" / "peers" / "quix_streams.py"


class Topics(Struct, frozen=True):
    """Topics with this prefix, each with this number of partitions. `count` is the number of records in all of them."""

    kafka: str
    partitions: int
    count: int
    prefix: str = PREFIX


class Peer(Struct, frozen=True):
    """A peer or limit that this machine can run. One that awaits each write needs ten times as long for a record."""

    name: str
    awaits_writes: bool = False

    def measure(self, topics: Topics, redis_url: str, cores: set[int] | None, most_records: int = 0) -> Values:
        """Measure one process of it, with this number of records at most (0: all). Raises MeasurementFailed."""
        if self.name == QUIX.name:
            return measure_quix(topics, redis_url, cores)
        return measure(self.name.replace("-", "_"), topics, redis_url, 1, cores, most_records)


def runnable(lab: Lab) -> list[Peer]:
    """The peers that this machine can run. The lab notes which one is left out, and why."""
    peers = [
        Peer("plain-set"),
        Peer("one-at-a-time", awaits_writes=True),
        Peer("one-set-at-a-time", awaits_writes=True),
    ]
    if QUIX_PYTHON.exists():
        return [*peers, Peer(QUIX.name)]
    lab.leave_out(QUIX.name, "not installed (make bench-quix)")
    return peers


class _Figures(Struct):
    """What a peer prints when it ends (`bench/peers/consuming.py`)."""

    records: int
    began: float
    ended: float
    cpu_seconds: float


def measure(
    module: str, topics: Topics, redis_url: str, processes: int, cores: set[int] | None, most_records: int = 0
) -> Values:
    """Measure this number of processes of a peer, each with its share of the partitions.

    `most_records` bounds the number of records of each process; 0 is no bound. Raises MeasurementFailed.
    """
    command = [sys.executable, "-m", f"bench.peers.{module}", topics.kafka, redis_url, topics.prefix]
    environment = {**os.environ, **({"MOST_RECORDS": str(most_records)} if most_records else {})}
    commands = [[*command, str(topics.partitions), f"{number}/{processes}"] for number in range(processes)]
    return _values(_run(commands, cores, environment))


def measure_quix(topics: Topics, redis_url: str, cores: set[int] | None) -> Values:
    """Measure one process of Quix Streams. Raises MeasurementFailed."""
    redis = urlsplit(redis_url)
    documents = ",".join(topics.prefix + resource.topic for resource in RESOURCES)
    address = (topics.kafka, redis.hostname or "", str(redis.port), documents)
    command = [str(QUIX_PYTHON), str(_SCRIPT), *address, str(topics.count), uuid4().hex]
    return _values(_run([command], cores, dict(os.environ)))


def _run(commands: Sequence[Sequence[str]], cores: set[int] | None, environment: dict[str, str]) -> list[_Figures]:
    with pinned(cores):
        running = [
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, env=environment)
            for command in commands
        ]
    try:
        ended = [process.communicate(timeout=_TIMEOUT_SECONDS) for process in running]
    finally:
        for process in running:
            process.kill()
    for process, (_, errors) in zip(running, ended, strict=True):
        if process.returncode:
            raise MeasurementFailed(f"{process.args!r}: {errors.decode()}")
    return [msgspec.json.decode(output.splitlines()[-1], type=_Figures) for output, _ in ended]


def _values(figures: Sequence[_Figures]) -> Values:
    """The time is from the first record of any process to the last record of all of them."""
    records = sum(each.records for each in figures)
    seconds = max(each.ended for each in figures) - min(each.began for each in figures)
    return {RATE.name: records / seconds, CPU.name: sum(each.cpu_seconds for each in figures) / records * 1e6}
