"""Kafka for machines with nothing but Python: librdkafka's mock cluster in a process of its own.

It speaks Kafka's protocol to any client on loopback and keeps everything in memory. It is enough to try
Leadview, and it is not Kafka. What it does not have:

- Groups of several members: followers that sync after the leader are refused. One member a group works.
- Retention by anything but size: a partition keeps its newest 5 MB (or 100,000 batches) and drops older ones.
  No compaction.
- Admin calls (create topics, describe groups or configurations), offsets by time. A topic asked for by name
  is created with four partitions.
- A restart that keeps records.

`python -m devstack.embedded_kafka` prints the address, then reads lines `<topic> <partitions>` from standard
input, answers each with `ok` or a reason, and ends when the input ends: so it dies with its parent.
"""

import sys
from pathlib import Path
from typing import Self

from devstack.child import Child
from devstack.mock_cluster import MockCluster, MockClusterFailed

_ROOT = Path(__file__).parents[1]


class EmbeddedKafka:
    """The process. `start` it; it serves when that returns. A context manager that stops it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "devstack.embedded_kafka"]
        self._child = Child(command, log=directory / "kafka.log", directory=_ROOT, piped=True)
        self.bootstrap_servers = self._read_line()

    @classmethod
    def start(cls, directory: Path) -> Self:
        """Starts it; its log goes to `directory`. Raises ServerFailed."""
        return cls(directory)

    @property
    def pid(self) -> int:
        return self._child.pid

    def check_running(self) -> None:
        """Raises ServerFailed where the process has ended."""
        self._child.check_running()

    def create_topic(self, name: str, partitions: int = 4) -> None:
        """Creates the topic. Raises ValueError, also where it exists."""
        requests, _ = self._child.pipes
        requests.write(f"{name} {partitions}\n".encode())
        requests.flush()
        answer = self._read_line()
        if answer != "ok":
            raise ValueError(answer)

    def stop(self) -> None:
        """Ends it. Its records are gone."""
        self._child.stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def _read_line(self) -> str:
        _, output = self._child.pipes
        line = output.readline()
        if not line:
            self._child.stop()
            raise self._child.failure("ended without an answer")
        return line.decode().strip()


def serve() -> None:
    """Runs the cluster until standard input ends."""
    cluster = MockCluster()
    print(cluster.bootstrap_servers, flush=True)
    for line in sys.stdin:
        print(_create(cluster, line), flush=True)


def _create(cluster: MockCluster, line: str) -> str:
    try:
        name, partitions = line.split()
        cluster.create_topic(name, int(partitions))
    except (ValueError, MockClusterFailed) as error:
        return str(error)
    return "ok"


if __name__ == "__main__":
    serve()
