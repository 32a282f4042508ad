"""Kafka for machines that have only Python: librdkafka's mock cluster in its own process.

It implements Kafka's protocol on loopback and keeps everything in memory. It suffices to try Leadview, but it is not
Kafka. It does not have:

- Groups of several members: followers that sync after the leader are rejected. A group with one member works.
- Retention by time, and compaction: a partition keeps its newest 5 MB (or 100,000 batches).
- Admin requests (create topics, describe groups or configurations) and offsets by time. A client that asks for a topic
  creates it with four partitions, and no setting forbids it.
- Transactions. The mock cluster takes them, but serves what is aborted, so they are refused here.
- The client of Apache Kafka in Java, since its version 2.4: its first request has a version that this broker does not
  know, and the answer is not in the format of version 0, so the client reads it as "wait for 20 minutes".
- Records that survive a restart.

`python -m devstack.embedded_kafka` prints its address, then reads lines `<topic> <partitions>` from standard input and
answers each with `ok` or a reason. It ends when the input ends, and so with its parent.

The cluster is called in the C library inside the package confluent_kafka. The package offers it as a setting
(`test.mock.num.brokers`), but then every topic has four partitions and the first member of a group waits three seconds.
Only the C functions can change that.
"""

import ctypes
import sys
from ctypes.util import find_library
from pathlib import Path
from typing import Self

import confluent_kafka

from devstack.child import Child

_ROOT = Path(__file__).parents[1]
_PRODUCER = 0
_ERROR_SIZE = 512
_BROKERS = _REPLICAS = 1
_FIRST_BROKER = 1
_GROUP_DELAY_MILLISECONDS = 100
_FIND_COORDINATOR, _ADD_PARTITIONS_TO_TRANSACTION = 10, 24


class EmbeddedKafka(Child):
    """The process. When `start` returns, it serves. Its records are lost when it ends."""

    @classmethod
    def start(cls, directory: Path) -> Self:
        """Start the process. Its log is in `directory`. Raises ServerFailed."""
        return cls(directory)

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "devstack.embedded_kafka"]
        super().__init__(command, log=directory / "kafka.log", directory=_ROOT, piped=True)
        self.bootstrap_servers = self._read_line()

    def create_topic(self, name: str, partitions: int = 4) -> None:
        """Create the topic. Raises ValueError, also if the topic exists."""
        requests, _ = self.pipes
        requests.write(f"{name} {partitions}\n".encode())
        requests.flush()
        answer = self._read_line()
        if answer != "ok":
            raise ValueError(answer)

    def _read_line(self) -> str:
        _, output = self.pipes
        line = output.readline()
        if not line:
            self.stop()
            raise self.failure("ended without a reply")
        return line.decode().strip()


class MockClusterFailed(RuntimeError):
    """librdkafka was not found, or a call of it failed."""


class MockCluster:
    """A broker in this process. It listens on loopback until the process ends."""

    def __init__(self) -> None:
        self._library = _load()
        self._cluster = self._library.rd_kafka_mock_cluster_new(_client(self._library), _BROKERS)
        if not self._cluster:
            raise MockClusterFailed("librdkafka could not create a mock cluster")
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, _GROUP_DELAY_MILLISECONDS)
        # Otherwise it names broker 0, which does not exist: kafkajs then waits for a controller until it gives up.
        self._library.rd_kafka_mock_set_controller_id(self._cluster, _FIRST_BROKER)
        # Clients that look for it refuse a transaction at once. Version 0 finds the coordinator of a group alone.
        self._library.rd_kafka_mock_set_apiversion(self._cluster, _ADD_PARTITIONS_TO_TRANSACTION, -1, -1)
        self._library.rd_kafka_mock_set_apiversion(self._cluster, _FIND_COORDINATOR, 0, 0)

    @property
    def bootstrap_servers(self) -> str:
        address: bytes = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster)
        return address.decode()

    def create_topic(self, name: str, partitions: int) -> None:
        """Create the topic. Raises MockClusterFailed, also if the topic exists."""
        error = self._library.rd_kafka_mock_topic_create(self._cluster, name.encode(), partitions, _REPLICAS)
        if error:
            raise MockClusterFailed(f"topic {name}: {self._library.rd_kafka_err2str(error).decode()}")


def _load() -> ctypes.CDLL:
    library = ctypes.CDLL(_library_path())
    pointer, number, text = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
    for name, result, *arguments in (
        ("rd_kafka_conf_new", pointer),
        ("rd_kafka_conf_set", number, pointer, text, text, text, ctypes.c_size_t),
        ("rd_kafka_new", pointer, number, pointer, text, ctypes.c_size_t),
        ("rd_kafka_err2str", text, number),
        ("rd_kafka_mock_cluster_new", pointer, pointer, number),
        ("rd_kafka_mock_cluster_bootstraps", text, pointer),
        ("rd_kafka_mock_set_controller_id", None, pointer, ctypes.c_int32),
        ("rd_kafka_mock_set_apiversion", number, pointer, ctypes.c_int16, ctypes.c_int16, ctypes.c_int16),
        ("rd_kafka_mock_topic_create", number, pointer, text, number, number),
        ("rd_kafka_mock_group_initial_rebalance_delay_ms", None, pointer, ctypes.c_int32),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def _library_path() -> str:
    """Returns the library inside the wheel (Linux, macOS or Windows); otherwise that of the system."""
    package = Path(confluent_kafka.__file__).parent
    for folder in (package.with_name("confluent_kafka.libs"), package / ".dylibs"):
        for path in sorted(folder.glob("*rdkafka*")):
            if "++" not in path.name:
                return str(path)
    path_of_system = find_library("rdkafka")
    if path_of_system is None:
        raise MockClusterFailed("there is no librdkafka in the package confluent_kafka or on this system")
    return path_of_system


def _client(library: ctypes.CDLL) -> int:
    """Returns a producer, which librdkafka requires as the owner of a mock cluster."""
    reason = ctypes.create_string_buffer(_ERROR_SIZE)
    configuration = library.rd_kafka_conf_new()
    library.rd_kafka_conf_set(configuration, b"log_level", b"3", reason, _ERROR_SIZE)
    client: int | None = library.rd_kafka_new(_PRODUCER, configuration, reason, _ERROR_SIZE)
    if not client:
        raise MockClusterFailed(reason.value.decode(errors="replace"))
    return client


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
