"""Chooses the brokers that the Kafka clients of this process ask: those of the settings, or those that a broker named.

aiokafka asks the addresses of the settings when a client starts, and never again. If all brokers get other addresses,
it does not find them, although the settings lead to them. And a client that starts while the addresses of the settings
do not answer finds no broker, although other clients of this process know some. `install` replaces its clients with
ones that look the brokers up again (KIP-899), and that share what they know.

aiokafka decodes each answer field by field in Python, which takes some 20 microseconds for each partition. While
nothing changes, brokers give the same answer each time: it is decoded once.
"""

import asyncio
import logging
import random
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakSet

from aiokafka.admin import client as of_admin
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.cluster import ClusterMetadata
from aiokafka.conn import CloseReason, create_conn
from aiokafka.consumer import consumer as of_consumer
from aiokafka.errors import KafkaConnectionError
from aiokafka.protocol.metadata import MetadataRequest
from aiokafka.protocol.offset import OffsetRequest

ANSWER_SECONDS = 5.0
"""The time that a broker has to name the brokers. If none has named them for this time, they are looked up again."""
_PAUSE_SECONDS = 1.0
"""Between two attempts to look them up."""
_FRESH_SECONDS = 10.0
"""The time for which brokers that were named are asked before those of the settings."""
_BOOTSTRAP = ("bootstrap", ConnectionGroup.DEFAULT)
"""aiokafka's name for the connection that it keeps if a cluster names no brokers yet."""
_WITHOUT_TOPICS = MetadataRequest([])
_REMEMBERED = 8
"""The number of answers of each kind that are remembered."""
_NOT_OF_CONNECTIONS = ("bootstrap_servers", "retry_backoff_ms", "api_version", "loop", "connections_max_idle_ms")

logger = logging.getLogger(__name__)


class BrokerAddress(NamedTuple):
    host: str
    port: int


class _Named(NamedTuple):
    at: float
    cluster_id: str | None
    addresses: tuple[BrokerAddress, ...]


_named: dict[tuple[str, ...], _Named] = {}
"""The brokers that were named last, by the addresses of the settings."""
_NOBODY = _Named(0.0, None, ())


def install() -> None:
    """Let all clients of this process ask the brokers that this module chooses."""
    of_admin.AIOKafkaClient = of_consumer.AIOKafkaClient = _Client
    for request in (*MetadataRequest._CLASSES, *OffsetRequest._CLASSES):  # noqa: SLF001 - all versions of them
        decoded_once(request.RESPONSE_TYPE)


def decoded_once(response: Any) -> Any:
    """Let the same bytes be decoded once, while they are among the last `_REMEMBERED` answers of this class. Nobody may
    change what is decoded. Returns the class.
    """
    decode = response.decode
    latest: OrderedDict[bytes, Any] = OrderedDict()

    def remembered(data: Any) -> Any:
        answer = data if isinstance(data, bytes) else data.read()
        decoded = latest.pop(answer, None)
        if decoded is None:
            decoded = decode(answer)
        latest[answer] = decoded
        if len(latest) > _REMEMBERED:
            latest.popitem(last=False)
        return decoded

    response.decode = remembered
    return response


def named(servers: Iterable[str]) -> tuple[BrokerAddress, ...]:
    """Returns the brokers that one of the servers has named last; none if none was asked."""
    return _named.get(tuple(servers), _NOBODY).addresses


class _Cluster(ClusterMetadata):  # type: ignore[misc]  # aiokafka has no types
    """The brokers of a cluster, as they describe it. What one client has learned, the others know as well."""

    def __init__(self, servers: Iterable[str], **options: Any) -> None:
        super().__init__(**options)
        self.id: str | None = None
        """None if it is not known."""
        self.servers = tuple(servers)

    @property
    def addresses(self) -> tuple[BrokerAddress, ...]:
        return tuple(sorted(BrokerAddress(broker.host, broker.port) for broker in self.brokers()))

    def update_metadata(self, metadata: Any) -> None:
        super().update_metadata(metadata)
        if metadata.brokers:
            self.id = _id(metadata)
            _named[self.servers] = _Named(time.monotonic(), self.id, self.addresses)


class _Client(AIOKafkaClient):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, *, metadata_max_age_ms: int = 300_000, **options: Any) -> None:
        super().__init__(metadata_max_age_ms=metadata_max_age_ms, **options)
        self.cluster = _Cluster(self._bootstrap_servers, metadata_max_age_ms=metadata_max_age_ms)
        self.look_ups = 0
        """The number of times that the brokers were looked up again. After each, another cluster may answer."""
        self._answered_at = self._look_up_at = time.monotonic()
        self._sync_task: asyncio.Task[None] | None = None
        self._checked: WeakSet[Any] = WeakSet()
        """The connections to brokers of the same cluster."""
        self._options = {name: value for name, value in options.items() if name not in _NOT_OF_CONNECTIONS}

    async def bootstrap(self) -> None:
        """Ask one address after the other which brokers there are. Raises KafkaConnectionError if none answers."""
        for address, cluster_id in self._addresses():
            opened = await self._open(address)
            if opened and await self._has_learned(opened, cluster_id):
                if self._sync_task is None:
                    self._sync_task = asyncio.create_task(self._md_synchronizer())
                return
        raise KafkaConnectionError(f"Unable to bootstrap from {self.hosts}")

    async def _has_learned(self, opened: Any, cluster_id: str | None) -> bool:
        """Returns whether a broker of this cluster has said at this connection which brokers there are."""
        is_kept = False
        try:
            metadata = await self._answer(opened, partial(opened.send, _WITHOUT_TOPICS))
            if metadata is None or not _is_of(cluster_id, metadata):
                return False
            self.cluster.update_metadata(metadata)
            if not metadata.brokers:
                self._conns[_BOOTSTRAP] = opened  # until the cluster names its brokers
                is_kept = True
            return True
        finally:
            if not is_kept:
                opened.close()

    def _addresses(self) -> list[tuple[BrokerAddress, str | None]]:
        """Returns whom to ask, in order, each with the cluster that it has to belong to. Brokers that were named within
        `_FRESH_SECONDS` come before the settings, others after them. The settings lead to the right cluster (None).
        """
        at, cluster_id, addresses = _named.get(self.cluster.servers, _NOBODY)
        of_settings = [(BrokerAddress(host, port), None) for host, port, _ in self.hosts]
        of_others = [(address, cluster_id) for address in random.sample(addresses, len(addresses))]
        is_fresh = time.monotonic() - at < _FRESH_SECONDS
        return [*of_others, *of_settings] if is_fresh else [*of_settings, *of_others]

    async def _open(self, address: BrokerAddress) -> Any:
        """Returns a connection that is not one of this client yet; None if it cannot be opened."""
        return await self._answer(address, partial(create_conn, *address, **self._options))

    async def _answer(self, whom: object, ask: Callable[[], Awaitable[Any]]) -> Any:
        """Returns what a broker answers; None if it does not."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await ask()
        except Exception as error:  # noqa: BLE001 - what answers need not be a broker
            logger.debug("a broker does not say which brokers there are", extra={"broker": whom, "error": repr(error)})
            return None

    async def _metadata_update(self, cluster_metadata: Any, topics: Collection[str]) -> bool:
        """Ask the known brokers for these topics, one after the other. If none has answered for `ANSWER_SECONDS`, look
        the brokers up again.
        """
        request = MetadataRequest(list(topics) if topics else None)
        for node in self._nodes():
            metadata = await self._ask(node, request)
            if metadata is None:
                continue
            if not metadata.brokers:  # as long as there are no topics
                return False
            cluster_metadata.update_metadata(metadata)
            self._answered_at = time.monotonic()
            if kept := self._conns.pop(_BOOTSTRAP, None):
                kept.close()
            return True
        cluster_metadata.failed_update(None)
        now = time.monotonic()
        silent = now - self._answered_at
        if silent < ANSWER_SECONDS or now < self._look_up_at:
            return False
        self._look_up_at = now + _PAUSE_SECONDS
        if not await self._look_up():
            return False
        logger.warning(
            "no Kafka broker that was known has answered: the brokers were looked up again",
            extra={
                "seconds": round(silent),
                "brokers": [f"{host}:{port}" for host, port in named(self.cluster.servers)],
            },
        )
        return await self._metadata_update(cluster_metadata, topics)

    async def _get_conn(self, node_id: Any, **options: Any) -> Any:
        """Returns the connection to a broker; None if there is none, or if a broker of another cluster is at its
        address now.
        """
        connection = await super()._get_conn(node_id, **options)
        if connection is None or connection in self._checked:
            return connection
        metadata = await self._answer(node_id, partial(connection.send, _WITHOUT_TOPICS))
        if metadata is not None and _is_of(self.cluster.id, metadata):
            self._checked.add(connection)
            return connection
        connection.close(reason=CloseReason.CONNECTION_BROKEN)
        return None

    def _nodes(self) -> list[Any]:
        """Returns all known brokers in any order, but first those to which there is a connection: others may have to
        wait until one that does not answer is given up.
        """
        nodes = [broker.nodeId for broker in self.cluster.brokers()]
        if _BOOTSTRAP in self._conns:
            nodes.append(_BOOTSTRAP[0])
        random.shuffle(nodes)
        return sorted(nodes, key=lambda node: (node, ConnectionGroup.DEFAULT) not in self._conns)

    async def _ask(self, node: Any, request: MetadataRequest) -> Any:
        """Returns what a known broker answers; None if it does not: then its connection is closed."""
        connection = await self._answer(node, partial(self._get_conn, node))
        metadata = await self._answer(node, partial(connection.send, request)) if connection else None
        if connection and metadata is None:
            connection.close(reason=CloseReason.CONNECTION_TIMEOUT)
        return metadata

    async def _look_up(self) -> bool:
        """Look the brokers up as at the start, and close the connections to the former ones. Returns False if none
        answers.
        """
        former = list(self._conns.values())
        try:
            await self.bootstrap()
        except KafkaConnectionError:
            return False
        for connection in former:
            connection.close()
        self.look_ups += 1
        self._answered_at = time.monotonic()
        return True


def _id(metadata: Any) -> str | None:
    """Returns the id of the cluster; None if its brokers do not say it (Kafka before 0.10.1)."""
    id_: str | None = getattr(metadata, "cluster_id", None)
    return id_


def _is_of(cluster_id: str | None, metadata: Any) -> bool:
    """Returns whether a broker of this cluster has answered: its address may be that of another one by now."""
    return cluster_id is None or _id(metadata) == cluster_id
