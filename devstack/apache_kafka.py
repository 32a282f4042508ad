"""Apache Kafka from its jars. It uses KRaft; each node is one process, both broker and controller.

directory/1/server.properties   node 1, and so on; node ids start at 1, the indexes that methods take at 0
directory/1/data                its storage
directory/1/kafka.log           warnings and errors
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from secrets import token_urlsafe
from typing import NamedTuple, Self

from devstack import topics
from devstack.child import Child
from devstack.jars import KAFKA
from devstack.ports import LOOPBACK, free_port
from devstack.waiting import wait_until

_READY_TIMEOUT_SECONDS = 180.0
_FORMAT_TIMEOUT_SECONDS = 180.0
_REPLICAS = 3
_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
_BY_RACK = "org.apache.kafka.common.replica.RackAwareReplicaSelector"

# A broker runs only for minutes here: the second compiler and a parallel collector would only delay its start.
_JVM_OPTIONS = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-Xshare:auto")
_LOG_OPTIONS = (
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
    "-Dorg.slf4j.simpleLogger.dateTimeFormat=HH:mm:ss.SSS",
)


class Login(NamedTuple):
    """A second port of each broker, on which clients have to sign in."""

    protocol: str
    """`SASL_PLAINTEXT` or `SASL_SSL`; with `PLAINTEXT`, it is only another way to the broker."""
    properties: Mapping[str, str]
    """Those of the listener, without its prefix `listener.name.login.`."""
    java_options: Sequence[str] = ()
    named_ports: Sequence[int] = ()
    """What the brokers name as this port, one for each broker: that of a proxy. By default, the port itself."""


def plain_login(users: Mapping[str, str]) -> Login:
    """Returns a login of these users, which are names and passwords (SASL, PLAIN, without TLS)."""
    named = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    properties = {"sasl.enabled.mechanisms": "PLAIN", "plain.sasl.jaas.config": f"{module} required {named};"}
    return Login("SASL_PLAINTEXT", properties)


class _Node(NamedTuple):
    id: int
    directory: Path
    broker_port: int
    controller_port: int
    sasl_port: int
    host: str
    rack: str

    @property
    def properties(self) -> Path:
        return self.directory / "server.properties"


class ApacheKafka:
    """A cluster of one or three nodes. When `start` returns, all nodes serve. A context manager that stops them."""

    def __init__(self, nodes: Sequence[_Node], jars: Path, java_options: Sequence[str] = ()) -> None:
        self._nodes = list(nodes)
        self._jars = jars
        self._java_options = java_options
        self._children = [self._launch(node) for node in nodes]

    @classmethod
    def start(
        cls,
        directory: Path,
        nodes: int = 1,
        *,
        login: Login | None = None,
        acls: bool = False,
        hosts: Sequence[str] = (),
        racks: Sequence[str] = (),
        java_options: Sequence[str] = (),
        ports: Sequence[int] = (),
    ) -> Self:
        """Format the storage below `directory` and start the nodes. Fetches the jars if they are not cached yet.

        `hosts` has one for each node; if it is empty, all are on loopback.
        `ports` has those of brokers; if it is empty, they are free ones.
        `racks` has one for each node, too: then clients may fetch from the replica in their own rack.
        With `login`, there is a second port on which clients have to sign in (`sasl_servers`).
        `acls`: these users have the rights that ACLs give them, and no other. On the first port, everything is allowed.
        Raises JarsMissing, ServerFailed, TimeoutError.
        """
        jars = KAFKA.fetch()
        plan = [
            _Node(i, directory.absolute() / str(i), port, free_port(), free_port() if login else 0, host, rack)
            for i, (port, host, rack) in enumerate(
                zip(
                    ports or [free_port() for _ in range(nodes)],
                    hosts or [LOOPBACK] * nodes,
                    racks or [""] * nodes,
                    strict=True,
                ),
                start=1,
            )
        ]
        _format(plan, jars, login, acls=acls)
        cluster = cls(plan, jars, [*java_options, *(login.java_options if login else ())])
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
    def ports(self) -> list[int]:
        """The ports of `bootstrap_servers`."""
        return [node.broker_port for node in self._nodes]

    @property
    def sasl_servers(self) -> str:
        """The addresses on which clients have to sign in."""
        return ",".join(f"{node.host}:{node.sasl_port}" for node in self._nodes)

    def check_running(self) -> None:
        """Raises ServerFailed if a node has ended."""
        for child in self._children:
            child.check_running()

    def create_topic(self, name: str, partitions: int = 4, *, compacted: bool = True) -> None:
        """Create the topic, with a replica on each of up to three nodes. An existing topic is not changed."""
        replicas = min(_REPLICAS, len(self._nodes))
        topics.create_topic(
            topics.admin(self.bootstrap_servers), name, partitions, replicas=replicas, compacted=compacted
        )

    def stop(self) -> None:
        """Kill every node. The storage must not be used afterwards."""
        for child in self._children:
            child.kill()

    def kill(self, index: int) -> None:
        """Send SIGKILL to one node."""
        self._children[index].kill()

    def pause(self, index: int) -> None:
        """Send SIGSTOP to one node: its connections stay open, but it does not respond."""
        self._children[index].pause()

    def resume(self, index: int) -> None:
        """Send SIGCONT to one node."""
        self._children[index].resume()

    def shut_down(self, index: int) -> None:
        """Stop one node as operators do: its storage is complete then."""
        self._children[index].stop()

    def restart(self, index: int) -> None:
        """Stop one node if it runs, start it again with its storage, and wait until it serves."""
        self._children[index].stop()
        self._children[index] = self._launch(self._nodes[index])
        self.wait_until_serving(index)

    def move(self, index: int) -> None:
        """Stop one node, start it again with its storage at another port, and wait until it serves."""
        self.shut_down(index)
        former = self._nodes[index]
        node = former._replace(broker_port=free_port())
        properties = former.properties.read_text().replace(_address(former), _address(node))
        node.properties.write_text(properties)
        self._nodes[index] = node
        self.restart(index)

    def wait_until_serving(self, index: int) -> None:
        """Wait until the node responds and lists itself among the brokers of the cluster. Raises TimeoutError."""
        node = self._nodes[index]
        wait_until(lambda: self._serves(index), f"Kafka node {node.id} serves", _READY_TIMEOUT_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.stop()

    def _launch(self, node: _Node) -> Child:
        command = _java(self._jars, node, "kafka.Kafka", str(node.properties), options=self._java_options)
        return Child(command, log=node.directory / "kafka.log")

    def _serves(self, index: int) -> bool:
        self._children[index].check_running()
        node = self._nodes[index]
        return node.id in topics.broker_ids(_address(node))


def _address(node: _Node) -> str:
    return f"{node.host}:{node.broker_port}"


def _named_port(node: _Node, login: Login) -> int:
    return login.named_ports[node.id - 1] if login.named_ports else node.sasl_port


def _java(jars: Path, node: _Node, main_class: str, *arguments: str, options: Sequence[str] = ()) -> list[str]:
    # A Java that is killed leaves its libraries in its temporary directory.
    options = [*_JVM_OPTIONS, *_LOG_OPTIONS, f"-Djava.io.tmpdir={node.directory}", *options]
    return ["java", "-Xmx512m", *options, "-cp", f"{jars}/*", main_class, *arguments]


def _format(nodes: Sequence[_Node], jars: Path, login: Login | None, *, acls: bool) -> None:
    """Write the properties of each node and format its storage, all nodes at the same time. Each cluster has an id of
    its own: 16 random bytes.
    """
    cluster_id = "A" + token_urlsafe(16)[1:]  # it must not look like an option
    formatters = []
    for node in nodes:
        node.directory.mkdir(parents=True, exist_ok=True)
        node.properties.write_text(_properties(node, nodes, login, acls=acls))
        arguments = ("format", "--cluster-id", cluster_id, "--config", str(node.properties))
        command = _java(jars, node, "kafka.tools.StorageTool", *arguments)
        formatters.append((Child(command, log=node.directory / "format.log"), node))
    for formatter, _ in formatters:
        if formatter.wait(_FORMAT_TIMEOUT_SECONDS) != 0:
            raise formatter.failure("could not format the storage")


def _properties(node: _Node, nodes: Sequence[_Node], login: Login | None, *, acls: bool) -> str:
    replicas = min(_REPLICAS, len(nodes))
    voters = ",".join(f"{other.id}@{other.host}:{other.controller_port}" for other in nodes)
    broker = f"BROKER://{_address(node)}"
    named = f"{broker},LOGIN://{node.host}:{_named_port(node, login)}" if login else broker
    broker += f",LOGIN://{node.host}:{node.sasl_port}" if login else ""
    protocols = "BROKER:PLAINTEXT,CONTROLLER:PLAINTEXT" + (f",LOGIN:{login.protocol}" if login else "")
    rack = {"broker.rack": node.rack, "replica.selector.class": _BY_RACK} if node.rack else {}
    authorizer = {"authorizer.class.name": _AUTHORIZER, "super.users": "User:ANONYMOUS"} if acls else {}
    return "\n".join(
        f"{name}={value}"
        for name, value in {
            "process.roles": "broker,controller",
            "node.id": node.id,
            "controller.quorum.voters": voters,
            "listeners": f"{broker},CONTROLLER://{node.host}:{node.controller_port}",
            "advertised.listeners": named,
            "listener.security.protocol.map": protocols,
            "inter.broker.listener.name": "BROKER",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": node.directory / "data",
            "auto.create.topics.enable": "false",
            "auto.leader.rebalance.enable": "false",  # leaders move when a broker ends, and if somebody asks for it
            "group.initial.rebalance.delay.ms": 0,
            "group.min.session.timeout.ms": 1_000,
            "min.insync.replicas": max(1, replicas - 1),
            "offsets.topic.num.partitions": 4,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.num.partitions": 4,
            "transaction.state.log.replication.factor": replicas,
            "transaction.state.log.min.isr": max(1, replicas - 1),
            "share.coordinator.state.topic.replication.factor": replicas,
            # Detect soon that a node was killed or paused. None with a rack is, so its partitions stay where they are.
            "broker.session.timeout.ms": 60_000 if node.rack else 3_000,
            "broker.heartbeat.interval.ms": 500,
            "controller.quorum.election.timeout.ms": 500,
            "controller.quorum.fetch.timeout.ms": 1_000,
            **rack,
            **authorizer,
            **{f"listener.name.login.{name}": value for name, value in (login.properties if login else {}).items()},
        }.items()
    )
