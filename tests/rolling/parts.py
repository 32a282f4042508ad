"""All parts of a distributed installation, and how an operator restarts each of them (docs/production.md).

Each restart returns when the part works again, as the part and its neighbours say themselves.
"""

import http.client
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial as bind
from itertools import count, islice
from pathlib import Path
from typing import NamedTuple

from devstack.apache_kafka import ApacheKafka
from devstack.child import Child
from devstack.ports import free_port
from devstack.programs import API, PROJECTOR, while_running
from devstack.redis_cluster import RedisCluster, keep_up
from devstack.redis_server import RedisServer
from devstack.topics import admin
from tests.chaos.core import Stage
from tests.chaos.history import CaughtUp, now
from tests.harness import metrics_port
from tests.harness.front import Front
from tests.harness.leadview import Leadview
from tests.harness.services import Kafka
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

BROKERS, SHARDS, PROJECTORS, APIS, FRONTS = 3, 3, 3, 2, 2
_PARTITIONS = 6
_FIRST_HOST = 11
"""Each part has an address of its own on loopback: 127.0.0.11 and so on."""
_PATIENCE_SECONDS = 3 * PATIENCE_SECONDS
# Longer than the second between two health checks of a front: each front learns that an API is about to end.
_DRAIN_SECONDS = 3
_TIMEOUT_SECONDS = 20.0
_DESCRIPTION = "/api/v1/ext/openapi.json"


def _has_apis(server: RedisServer) -> bool:
    with server.client() as client:
        return any(each["name"] == "leadview-api" for each in client.client_list())


class _Program(NamedTuple):
    """A projector or an API: how it is started, and where it listens."""

    name: str
    host: str
    command: Sequence[str]
    words: Sequence[str]
    port: int
    metrics_port: int


class Parts(Stage):
    """Everything runs when the constructor returns, until `stack` ends. What the parts log is in `directory`."""

    def __init__(self, stack: ExitStack, directory: Path, redis_timeout: float) -> None:
        """`redis_timeout` is `LEADVIEW_API_REDIS_TIMEOUT`."""
        self._redis_timeout = redis_timeout
        hosts = (f"127.0.0.{number}" for number in count(_FIRST_HOST))
        self._brokers = stack.enter_context(
            ApacheKafka.start(directory / "kafka", BROKERS, hosts=list(islice(hosts, BROKERS)))
        )
        self._cluster = stack.enter_context(
            RedisCluster(
                directory / "redis",
                SHARDS,
                replicas=True,
                appendonly=True,
                options=("--protected-mode", "no"),
                hosts=list(islice(hosts, 2 * SHARDS)),
            )
        )
        kafka = Kafka("apache", self._brokers.bootstrap_servers, self._brokers.create_topic)
        super().__init__(stack.enter_context(Leadview(kafka, "crm.", self._cluster, directory)))
        self.leadview.topics.create(_PARTITIONS)
        self._children: dict[str, Child] = {}
        self._projectors = [_program(f"projector-{i + 1}", next(hosts), PROJECTOR, ["run"]) for i in range(PROJECTORS)]
        self._apis = [_program(f"api-{i + 1}", next(hosts), API, []) for i in range(APIS)]
        for program in (*self._projectors, *self._apis):
            self._launch(program)
        upstreams = [f"{api.host}:{api.port}" for api in self._apis]
        variables = {"FRONT_HEALTH_URI": "/readyz", "FRONT_DRAIN_SECONDS": str(_DRAIN_SECONDS)}
        self.fronts = [
            stack.enter_context(Front.running(directory / f"front-{i + 1}", upstreams, next(hosts), variables))
            for i in range(FRONTS)
        ]

    def wait_until_ready(self) -> None:
        """Wait until everything that was published by now is served by all."""
        self._catch_up()
        for projector in self._projectors:
            self._wait_until_working(projector)
        for api in self._apis:
            self._wait_until_serving(api)

    def restart_broker(self, index: int) -> None:
        """The next broker may be restarted when this one has all that the others acknowledged."""
        self._brokers.restart(index)
        self._wait(self._is_replicated, "every partition has all of its replicas in sync")
        self._catch_up()

    def restart_replica(self, number: int) -> None:
        self._cluster.replicas[number].restart()
        self._cluster.wait_until_in_step(number)
        keep_up(self._cluster.primaries[number])
        self._catch_up()

    def hand_over(self, number: int) -> None:
        """A primary is never restarted: it becomes a replica first, which no API has a connection to any more."""
        self._cluster.hand_over(number)
        former = self._cluster.replicas[number]
        wait_until(lambda: not _has_apis(former), "the APIs use the new primary", _PATIENCE_SECONDS)
        self._catch_up()

    def restart_projector(self, index: int) -> None:
        projector = self._projectors[index]
        self._restart(projector)
        self._wait_until_working(projector)
        self._catch_up()

    def restart_api(self, index: int) -> None:
        """The next API may be restarted when each front uses this one."""
        api = self._apis[index]
        self._restart(api)
        self._wait_until_serving(api)
        self._catch_up()

    def restart_front(self, index: int) -> None:
        self.fronts[index].restart()
        self._catch_up()

    def _launch(self, program: _Program) -> None:
        self._children[program.name] = self.leadview.start(
            *program.words,
            command=program.command,
            log=program.name,
            redis_url=self._cluster.url_of_all,
            metrics_host=program.host,
            metrics_port=program.metrics_port,
            api_host=program.host,
            api_port=program.port,
            api_drain_seconds=_DRAIN_SECONDS,
            api_redis_timeout=self._redis_timeout,
            api_trusted_proxies="127.0.0.0/8",
        )

    def _restart(self, program: _Program) -> None:
        """Send SIGTERM, and start it again when it has ended."""
        self._children[program.name].stop()
        self._launch(program)

    def _wait_until_working(self, projector: _Program) -> None:
        self._wait_for(projector, projector.metrics_port, "/healthz")

    def _wait_until_serving(self, api: _Program) -> None:
        self._wait_for(api, api.port, "/readyz")
        for front in self.fronts:
            before = self._descriptions(api)
            self._wait(bind(self._is_used, front, api, before), f"the front at {front.host} uses {api.name}")

    def _wait_for(self, program: _Program, port: int, path: str) -> None:
        """Wait until the program answers 200 at this path."""
        is_well = while_running(
            self._children[program.name], lambda: metrics_port.ask(port, path, program.host)[0] == 200
        )
        self._wait(is_well, f"{program.name} answers 200 at {path}")

    def _is_used(self, front: Front, api: _Program, before: float) -> bool:
        """Does this API answer some of the requests to this front? Nothing else asks for the description."""
        front.ask("GET", _DESCRIPTION)
        return self._descriptions(api) > before

    def _descriptions(self, api: _Program) -> float:
        name = 'leadview_api_requests_total{route="openapi",status="200"}'
        return metrics_port.metric(api.metrics_port, name, api.host) or 0.0

    def _is_replicated(self) -> bool:
        topics = admin(self._brokers.bootstrap_servers).list_topics(timeout=PATIENCE_SECONDS).topics.values()
        partitions = [partition for topic in topics for partition in topic.partitions.values()]
        return all(len(partition.isrs) == len(partition.replicas) for partition in partitions)

    def _catch_up(self) -> None:
        """Wait until everything that Kafka has by now is applied, and note it: no later answer may be older."""
        up_to, end_offsets = now(), dict(self.leadview.topics.end_offsets)
        self._wait(bind(self.leadview.has_applied, end_offsets), "all events are applied")
        self.history.caught_up.append(CaughtUp(up_to, now()))

    def _wait(self, predicate: Callable[[], object], description: str) -> None:
        wait_until(predicate, description, _PATIENCE_SECONDS)


def _program(name: str, host: str, command: Sequence[str], words: Sequence[str]) -> _Program:
    return _Program(name, host, command, words, free_port(), free_port())


class FrontConnection(http.client.HTTPSConnection):
    """A connection to the first front that accepts one, as to a name with several addresses."""

    def __init__(self, fronts: Sequence[Front]) -> None:
        self._tls = ssl.create_default_context()
        for front in fronts:
            self._tls.load_verify_locations(front.ca)
        self._addresses = [(front.host, front.port) for front in fronts]
        super().__init__("localhost", timeout=_TIMEOUT_SECONDS, context=self._tls)

    def connect(self) -> None:
        *others, last = self._addresses
        for address in others:
            try:
                self._connect_to(address)
            except OSError:
                continue
            return
        self._connect_to(last)

    def _connect_to(self, address: tuple[str, int]) -> None:
        plain = socket.create_connection(address, _TIMEOUT_SECONDS)
        try:
            self.sock = self._tls.wrap_socket(plain, server_hostname="localhost")
        except OSError:
            plain.close()
            raise
