"""Bounds what a consumer fetches ahead of what it unpacks, whatever the number of brokers and partitions.

aiokafka itself asks each broker for so many bytes, and again while some partitions still have records: up to
`max_partition_fetch_bytes` for each of them. So its class for this is replaced.

A broker answers the requests of a connection one after the other, and a request for records waits up to `LINGER_MS`
for them. So these requests have connections of their own: a line that seeks its positions does not wait for them.
"""

from typing import Any

from aiokafka.client import ConnectionGroup
from aiokafka.consumer import consumer, fetcher
from aiokafka.protocol.fetch import FetchRequest

from projector.kafka.unpacking import BoundedResult

LINGER_MS = 200
"""How long a broker waits for records."""
_OF_FETCHES = max(ConnectionGroup) + 1


class _Client:
    """An AIOKafkaClient that sends requests for records over connections of their own."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    async def send(self, node: int, request: Any) -> Any:
        group = _OF_FETCHES if isinstance(request, FetchRequest) else ConnectionGroup.DEFAULT
        return await self._client.send(node, request, group=group)


class BoundedFetcher(fetcher.Fetcher):  # type: ignore[misc]  # aiokafka has no types
    """Fetches nothing while it has `fetch_max_bytes`. All brokers together may return so many bytes at once.

    Only a batch, the first that a broker returns, is returned whatever its size.
    """

    def __init__(self, client: Any, *arguments: Any, fetch_max_bytes: int, **options: Any) -> None:
        super().__init__(_Client(client), *arguments, fetch_max_bytes=fetch_max_bytes, **options)
        self._most = fetch_max_bytes

    def _get_actions_per_node(self, assignment: Any) -> tuple[Any, ...]:
        self._fetch_max_bytes = self._most // max(1, len(self._client.cluster.brokers()))
        requests, *others = super()._get_actions_per_node(assignment)
        held = sum(result.size for result in self._records.values() if isinstance(result, BoundedResult))
        return [] if held >= self._most else requests, *others


def install() -> None:
    """Let all consumers of this process fetch with this module."""
    consumer.Fetcher = BoundedFetcher
