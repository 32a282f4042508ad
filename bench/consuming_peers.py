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

RATE = Metric("rate", "records/s", more_is_better=True, chart=True)
CPU = Metric("CPU a record", "µs")
SUBJECTS = (
    Subject("plain-set", "limit", "getmany, decode, pipelined SET of the same bytes"),
    Subject("one-at-a-time", "peer", "`async for`, await each write, until the same documents stand there"),
    Subject("one-set-at-a-time", "peer", "`async for`, await one SET a record: no contact in leads"),
)
QUIX = Subject("quix-streams", "peer", "Quix Streams with its Redis sink")
QUIX_PYTHON = ROOT / "build" / "quix" / "bin" / "python"
ONE_AT_A_TIME = 10_000
"""Records of a measurement of the peers that await each write: they take ten times as long for a record."""
_TIMEOUT_SECONDS = 120.0
_SCRIPT = ROOT / "bench" / "peers" / "quix_streams.py"


class Topics(Struct, frozen=True):
    """Where the records are: topics with this prefix, with so many partitions each."""

    kafka: str
    partitions: int
    count: int
    prefix: str = PREFIX


class Peer(Struct, frozen=True):
    """A peer or limit that this machine can run. `most_records` bounds a measurement; 0 is no bound."""

    name: str
    most_records: int = 0

    def measure(self, topics: Topics, redis_url: str, cores: set[int] | None) -> Values:
        """Run one process of it. Raises MeasurementFailed."""
        if self.name == QUIX.name:
            return measure_quix(topics, redis_url, cores)
        return measure(self.name.replace("-", "_"), topics, redis_url, 1, cores, min(topics.count, self.most_records))

    def store_all(self, topics: Topics, redis_url: str, cores: set[int] | None) -> None:
        """Let it write all records, however long it takes. Raises MeasurementFailed."""
        Peer(self.name).measure(topics, redis_url, cores)


def runnable(lab: Lab) -> list[Peer]:
    """The peers that this machine can run. `lab` is told why another one is left out."""
    peers = [Peer("plain-set"), Peer("one-at-a-time", ONE_AT_A_TIME), Peer("one-set-at-a-time", ONE_AT_A_TIME)]
    if QUIX_PYTHON.exists():
        return [*peers, Peer(QUIX.name)]
    lab.leave_out(QUIX.name, "not installed (make bench-quix)")
    return peers


class _Figures(Struct):
    records: int
    began: float
    ended: float
    cpu_seconds: float


def measure(module: str, topics: Topics, redis_url: str, parts: int, cores: set[int] | None, most: int = 0) -> Values:
    """Run so many processes of this peer, each with its part of the partitions; of `most` records where it is given."""
    command = [sys.executable, "-m", f"bench.peers.{module}", topics.kafka, redis_url, topics.prefix]
    environment = {**os.environ, **({"MOST": str(most)} if most else {})}
    commands = [[*command, str(topics.partitions), f"{part}/{parts}"] for part in range(parts)]
    return _values(_run(commands, cores, environment))


def measure_quix(topics: Topics, redis_url: str, cores: set[int] | None) -> Values:
    """One process of Quix Streams."""
    redis = urlsplit(redis_url)
    address = (topics.kafka, redis.hostname or "", str(redis.port), topics.prefix)
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


def _values(found: Sequence[_Figures]) -> Values:
    """From the first record of any to the last record of all."""
    records = sum(each.records for each in found)
    seconds = max(each.ended for each in found) - min(each.began for each in found)
    return {RATE.name: records / seconds, CPU.name: sum(each.cpu_seconds for each in found) / records * 1e6}
