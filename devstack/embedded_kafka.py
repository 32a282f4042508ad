"""Kafka for machines that have only Python: librdkafka's mock cluster in its own process.

It implements Kafka's protocol on loopback and keeps everything in memory. It suffices to try Leadview, but it is not
Kafka. It does not have:

- Groups of several members: followers that sync after the leader are rejected. A group with one member works.
- Retention by time, and compaction: a partition keeps its newest 5 MB (or 100,000 batches).
- Admin requests (create topics, describe groups or configurations) and offsets by time. A client that asks for a topic
  creates it with four partitions.
- The client of Apache Kafka in Java, since its version 2.4: its first request has a version that this broker does not
  know, and the answer is not in the format of version 0, so the client reads it as "wait for 20 minutes".
- Records that survive a restart.

`python -m devstack.embedded_kafka` prints its address, then reads lines `<topic> <partitions>` from standard input and
answers each with `ok` or a reason. It ends when the input ends, and so with its parent.
"""

import sys
from pathlib import Path
from typing import Self

from devstack.child import Child
from devstack.mock_cluster import MockCluster, MockClusterFailed

_ROOT = Path(__file__).parents[1]


class EmbeddedKafka:
    """The process. When `start` returns, it serves. A context manager that stops it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "devstack.embedded_kafka"]
        self._child = Child(command, log=directory / "kafka.log", directory=_ROOT, piped=True)
        self.bootstrap_servers = self._read_line()

    @classmethod
    def start(cls, directory: Path) -> Self:
        """Start the process. Its log is in `directory`. Raises ServerFailed."""
        return cls(directory)

    @property
    def pid(self) -> int:
        return self._child.pid

    def check_running(self) -> None:
        """Raises ServerFailed if the process has ended."""
        self._child.check_running()

    def create_topic(self, name: str, partitions: int = 4) -> None:
        """Create the topic. Raises ValueError, also if the topic exists."""
        requests, _ = self._child.pipes
        requests.write(f"{name} {partitions}\n".encode())
        requests.flush()
        answer = self._read_line()
        if answer != "ok":
            raise ValueError(answer)

    def stop(self) -> None:
        """Stop the process. Its records are lost."""
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
            raise self._child.failure("ended without a reply")
        return line.decode().strip()


def serve() -> None:
    """Run the cluster until standard input ends."""
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
