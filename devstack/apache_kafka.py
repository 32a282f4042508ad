"""Apache Kafka from its jars: KRaft, broker and controller in one process a node, on loopback.

directory/1/server.properties   node 1, and so on; node ids start at 1, indexes of methods at 0
directory/1/data                its storage
directory/1/kafka.log           warnings and errors
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Self

from devstack import topics
from devstack.child import Child
from devstack.kafka_jars import kafka_jars
from devstack.ports import free_port
from devstack.waiting import wait_until

_READY_TIMEOUT_SECONDS = 180.0
_FORMAT_TIMEOUT_SECONDS = 180.0
_REPLICAS = 3
_CLUSTER_ID = "TGVhZHZpZXdMZWFkdmlldw"

# A broker here lives for minutes: the second compiler and a parallel collector only cost start-up time.
_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xshare:auto")
_LOG_OPTIONS = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)


class _Node(NamedTuple):
    id: int
    directory: Path
    broker_port: int
    controller_port: int

    @property
    def properties(self) -> Path:
        return self.directory / "server.properties"


class ApacheKafka:
    """A cluster of one or three nodes. `start` it; all nodes serve when that returns. A context manager."""

    def __init__(self, nodes: Sequence[_Node], jars: Path) -> None:
        self._nodes = nodes
        self._jars = jars
        self._children = [self._launch(node) for node in nodes]

    @classmethod
    def start(cls, directory: Path, nodes: int = 1) -> Self:
        """Formats storage below `directory` and starts. Fetches the jars where they are not cached yet.

        Raises KafkaJarsMissing, ServerFailed, TimeoutError.
        """
        jars = kafka_jars()
        plan = [_Node(i, directory.absolute() / str(i), free_port(), free_port()) for i in range(1, nodes + 1)]
        _format(plan, jars)
        cluster = cls(plan, jars)
        try:
            for index in range(nodes):
                cluster.wait_until_serving(index)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(_address(node) for node in self._nodes)

    @property
    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    def check_running(self) -> None:
        """Raises ServerFailed where a node has ended."""
        for child in self._children:
            child.check_running()

    def create_topic(self, name: str, partitions: int = 4, *, compacted: bool = True) -> None:
        """Creates the topic with a replica on each of up to three nodes; an existing one stays as it is."""
        replicas = min(_REPLICAS, len(self._nodes))
        topics.create_topic(self.bootstrap_servers, name, partitions, replicas=replicas, compacted=compacted)

    def stop(self) -> None:
        """Ends every node. Nothing of the storage is meant to be used after."""
        for child in self._children:
            child.kill()

    def kill(self, index: int) -> None:
        """SIGKILL to one node."""
        self._children[index].kill()

    def pause(self, index: int) -> None:
        """SIGSTOP to one node: connections stay open and nothing answers."""
        self._children[index].pause()

    def resume(self, index: int) -> None:
        """SIGCONT to one node."""
        self._children[index].resume()

    def restart(self, index: int) -> None:
        """Shuts one node down where it runs, starts it again on its storage, waits until it serves."""
        self._children[index].stop()
        self._children[index] = self._launch(self._nodes[index])
        self.wait_until_serving(index)

    def wait_until_serving(self, index: int) -> None:
        """Until the node answers and counts itself among the brokers of the cluster."""
        node = self._nodes[index]
        wait_until(lambda: self._serves(index), f"Kafka node {node.id} serves", _READY_TIMEOUT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def _launch(self, node: _Node) -> Child:
        command = _java(self._jars, "kafka.Kafka", str(node.properties))
        return Child(command, log=node.directory / "kafka.log")

    def _serves(self, index: int) -> bool:
        self._children[index].check_running()
        node = self._nodes[index]
        return node.id in topics.broker_ids(_address(node))


def _address(node: _Node) -> str:
    return f"127.0.0.1:{node.broker_port}"


def _java(jars: Path, main_class: str, *arguments: str) -> list[str]:
    return ["java", "-Xmx512m", *_JVM_OPTIONS, *_LOG_OPTIONS, "-cp", f"{jars}/*", main_class, *arguments]


def _format(nodes: Sequence[_Node], jars: Path) -> None:
    """Writes each node's properties and formats its storage, all at the same time."""
    formatters = []
    for node in nodes:
        node.directory.mkdir(parents=True, exist_ok=True)
        node.properties.write_text(_properties(node, nodes))
        arguments = ("format", "--cluster-id", _CLUSTER_ID, "--config", str(node.properties))
        command = _java(jars, "kafka.tools.StorageTool", *arguments)
        formatters.append((Child(command, log=node.directory / "format.log"), node))
    for formatter, _ in formatters:
        if formatter.wait(_FORMAT_TIMEOUT_SECONDS) != 0:
            raise formatter.failure("could not format the storage")


def _properties(node: _Node, nodes: Sequence[_Node]) -> str:
    replicas = min(_REPLICAS, len(nodes))
    voters = ",".join(f"{other.id}@127.0.0.1:{other.controller_port}" for other in nodes)
    broker = f"BROKER://{_address(node)}"
    return "\n".join(
        f"{name}={value}"
        for name, value in {
            "process.roles": "broker,controller",
            "node.id": node.id,
            "controller.quorum.voters": voters,
            "listeners": f"{broker},CONTROLLER://127.0.0.1:{node.controller_port}",
            "advertised.listeners": broker,
            "listener.security.protocol.map": "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "inter.broker.listener.name": "BROKER",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": node.directory / "data",
            "auto.create.topics.enable": "false",
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1_000,
            "min.insync.replicas": max(1, replicas - 1),
            "offsets.topic.num.partitions": 4,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.num.partitions": 4,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": max(1, replicas - 1),
            "share.coordinator.state.topic.replication.factor": replicas,
            # A killed or paused node is missed soon.
            "broker.session.timeout.ms": 3_000,
            "broker.heartbeat.interval.ms": 500,
            "controller.quorum.election.timeout.ms": 500,
            "controller.quorum.fetch.timeout.ms": 1_000,
        }.items()
    )
