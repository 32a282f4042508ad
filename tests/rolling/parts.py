"""All parts of a distributed installation, and how an operator restarts each of them (docs/production.md).

Each restart returns when the part works again, as the part and its neighbours say themselves.
"""

import http.client
import socket
import ssl
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial as bind
from pathlib import Path

from devstack.apache_kafka import ApacheKafka
from devstack.child import Child
from devstack.programs import while_running
from devstack.redis_cluster import keep_up
from devstack.redis_server import RedisServer
from devstack.topics import admin
from tests.chaos.world import World
from tests.harness import metrics_port
from tests.harness.front import Front
from tests.harness.services import Kafka
from tests.harness.waiting import PATIENCE_SECONDS

BROKERS, SHARDS, PROJECTORS, APIS, FRONTS = 3, 3, 3, 2, 2
_PARTITIONS = 6
# Longer than the second between two health checks of a front: each front learns that an API is about to end.
_DRAIN_SECONDS = 3
_TIMEOUT_SECONDS = 20.0
_DESCRIPTION = "/api/v1/ext/openapi.json"


def _has_apis(server: RedisServer) -> bool:
    with server.client() as client:
        return any(each["name"] == "leadview-api" for each in client.client_list())


class Parts(World):
    """Three brokers, a cluster of three shards, projectors, APIs and fronts. Each server has an address of its own.

    Everything runs when the constructor returns, until `stack` ends. What the parts log is in `directory`.
    """

    def __init__(self, stack: ExitStack, directory: Path, redis_timeout: float) -> None:
        """`redis_timeout` is `LEADVIEW_API_REDIS_TIMEOUT`."""
        hosts = [f"127.0.0.{11 + number}" for number in range(BROKERS + 2 * SHARDS + FRONTS)]
        brokers = stack.enter_context(ApacheKafka.start(directory / "kafka", BROKERS, hosts=hosts[:BROKERS]))
        super().__init__(
            Kafka("apache", brokers.bootstrap_servers, brokers.create_topic),
            "crm.",
            directory,
            brokers,
            api_redis_timeout=redis_timeout,
            redis="cluster",
            projectors=PROJECTORS,
            processes=APIS,
            hosts=hosts[BROKERS:-FRONTS],
            api_drain_seconds=_DRAIN_SECONDS,
            api_trusted_proxies="127.0.0.0/8",
        )
        stack.enter_context(self)
        self.start(_PARTITIONS)
        upstreams = [f"127.0.0.1:{port}" for port in self.ports]
        variables = {"FRONT_HEALTH_URI": "/readyz", "FRONT_DRAIN_SECONDS": str(_DRAIN_SECONDS)}
        self.fronts = [
            stack.enter_context(Front.running(directory / f"front-{host}", upstreams, host, variables))
            for host in hosts[-FRONTS:]
        ]

    def wait_until_ready(self) -> None:
        self.catch_up()
        for name in self.projectors:
            self._wait_for(self.projectors[name], self.metrics_ports[name], "/healthz")
        for number in range(APIS):
            self._wait_until_serving(number)

    def restart_broker(self, index: int) -> None:
        """The next broker may be restarted when this one has all that the others acknowledged."""
        self.brokers.restart(index)
        self.wait_until(self._is_replicated, "every partition has all of its replicas in sync")

    def restart_replica(self, number: int) -> None:
        self.cluster.replicas[number].restart()
        self.cluster.wait_until_in_step(number)
        keep_up(self.cluster.primaries[number])

    def hand_over(self, number: int) -> None:
        """A primary is never restarted: it becomes a replica first, which no API has a connection to any more."""
        self.cluster.hand_over(number)
        former = self.cluster.replicas[number]
        self.wait_until(lambda: not _has_apis(former), "the APIs use the new primary")

    def restart_projector(self, name: str) -> None:
        self.projectors[name].stop()
        self.start_projector(name)
        self._wait_for(self.projectors[name], self.metrics_ports[name], "/healthz")

    def restart_an_api(self, number: int) -> None:
        """The next API may be restarted when each front uses this one."""
        self.apis[number].stop()
        self.start_api(number)
        self._wait_until_serving(number)

    def _wait_until_serving(self, number: int) -> None:
        self._wait_for(self.apis[number], self.ports[number], "/readyz")
        for front in self.fronts:
            before = self._descriptions(number)
            self.wait_until(bind(self._is_used, front, number, before), f"the front at {front.host} uses the API")

    def _wait_for(self, child: Child, port: int, path: str) -> None:
        is_well = while_running(child, lambda: metrics_port.ask(port, path)[0] == 200)
        self.wait_until(is_well, f"port {port} answers 200 at {path}")

    def _is_used(self, front: Front, number: int, before: float) -> bool:
        """Does this API answer some of the requests to this front? Nothing else asks for the description."""
        front.ask("GET", _DESCRIPTION)
        return self._descriptions(number) > before

    def _descriptions(self, number: int) -> float:
        name = 'leadview_api_requests_total{route="openapi",status="200"}'
        return metrics_port.metric(self.api_metrics_ports[number], name) or 0.0

    def _is_replicated(self) -> bool:
        topics = admin(self.brokers.bootstrap_servers).list_topics(timeout=PATIENCE_SECONDS).topics.values()
        partitions = [partition for topic in topics for partition in topic.partitions.values()]
        return all(len(partition.isrs) == len(partition.replicas) for partition in partitions)


class FrontConnection(http.client.HTTPSConnection):
    """A connection to the first front that accepts one, as to a name with several addresses."""

    def __init__(self, fronts: Sequence[Front]) -> None:
        self._tls = ssl.create_default_context()
        for front in fronts:
            self._tls.load_verify_locations(front.ca)
        self._addresses = [(front.host, front.port) for front in fronts]
        super().__init__("localhost", timeout=_TIMEOUT_SECONDS, context=self._tls)

    def connect(self) -> None:
        for address in self._addresses:
            with suppress(OSError):
                plain = socket.create_connection(address, _TIMEOUT_SECONDS)
                self.sock = self._tls.wrap_socket(plain, server_hostname="localhost")
                return
        raise ConnectionRefusedError("no front accepts a connection")
