"""The connections of a projector to Redis: pipelines that are not finished, and connections that were reset."""

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Awaitable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
import uvloop
from redis.asyncio import ConnectionPool

from projector.errors import Unavailable
from projector.redis import node
from projector.redis.node import Node, ReplicationEpoch, pack
from projector.redis.store import Store
from schemas.settings import ProjectorSettings
from tests.harness.faulty_proxy import Faults, FaultyProxy, faulty_proxy
from tests.harness.services import RedisService
from tests.harness.waiting import eventually

FIRST, SECOND = (b"ECHO", b"first"), (b"ECHO", b"second")
MORE_THAN_BUFFERS_HOLD = 32 * 1024 * 1024


@pytest.fixture
def proxy(redis_server: RedisService) -> Iterator[FaultyProxy]:
    with faulty_proxy(urlsplit(redis_server.url).port or 6379) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: FaultyProxy) -> AsyncIterator[Store]:
    """It is connected."""
    store = new_store(proxy)
    assert await store.ask_one(*SECOND) == b"second"
    yield store
    await store.close()


async def test_a_reply_that_comes_too_late(proxy: FaultyProxy, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    proxy.faults = Faults(held=b"first")
    await times_out(monkeypatch, store.ask_one(*FIRST))
    proxy.faults = Faults()
    assert await store.ask_one(*SECOND) == b"second"


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_what_was_not_sent_in_time_is_never_sent(
    proxy: FaultyProxy, redis_server: RedisService, monkeypatch: pytest.MonkeyPatch, loop: Any
) -> None:
    """Its generation may have been dropped meanwhile: the program that gave the batch up has acknowledged that."""

    async def give_up() -> None:
        store = new_store(proxy)
        await store.ask_one(*FIRST)
        proxy.faults = Faults(stalled=True)
        await times_out(monkeypatch, store.ask_one(b"SET", b"late", bytes(MORE_THAN_BUFFERS_HOLD)))
        proxy.faults = Faults()
        assert await store.ask_one(*SECOND) == b"second"
        with redis_server.client() as client:
            await eventually(lambda: len(connections(client)) == 1, "the first connection has ended")
            assert not client.exists("late")
        await store.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(give_up())


async def test_a_connection_that_the_network_has_lost(proxy: FaultyProxy, store: Store) -> None:
    """For redis-py, ETIMEDOUT is a timeout of its own."""
    [connection] = store._client.connection_pool._available_connections
    proxy.faults = Faults(held=b"first")
    asking = asyncio.create_task(store.ask_one(*FIRST))
    await eventually(lambda: proxy.holding, "the request is on its way")
    connection._reader.set_exception(TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))
    with pytest.raises(Unavailable, match="Connection timed out"):
        await asking
    proxy.faults = Faults()
    assert await store.ask_one(*SECOND) == b"second"


async def test_a_connection_that_is_closed_while_the_batch_is_confirmed(redis_server: RedisService) -> None:
    """On a cluster, its server may be found not to be a primary any more."""
    node = Node(ConnectionPool.from_url(redis_server.url, protocol=2), ReplicationEpoch())

    class Closing:
        def __init__(self) -> None:
            self.opened = 0
            self.confirmed: set[int] = set()

        async def confirm(self) -> None:
            await node.close()

    with pytest.raises(ConnectionError, match="closed meanwhile"):
        await node.send([pack(*FIRST)], fence=Closing())
    assert await node.send([pack(*SECOND)]) == [b"second"]
    await node.close()


async def test_a_caller_that_is_cancelled(proxy: FaultyProxy, store: Store) -> None:
    proxy.faults = Faults(held=b"first")
    asking = asyncio.create_task(store.ask_one(*FIRST))
    await eventually(lambda: proxy.holding, "the request is on its way")
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    proxy.faults = Faults()
    assert await store.ask_one(*SECOND) == b"second"


def test_a_connection_that_was_reset_while_nobody_used_it(proxy: FaultyProxy) -> None:
    """Projectors use uvloop, whose error is no error of a connection. A pipeline is sent over a new connection."""

    async def use() -> None:
        store = new_store(proxy)
        pool = store._client.connection_pool

        async def reset() -> None:
            await store.ask_one(*FIRST)
            proxy.reset_all()
            [connection] = pool._available_connections
            await eventually(connection._writer.transport.is_closing, "the projector has seen that it was reset")

        await reset()
        assert await store.ask_one(*SECOND) == b"second"
        await reset()
        with pytest.raises(Unavailable, match="reset"):
            await store.memories()
        assert await store.memories()
        await store.close()

    uvloop.run(use())


def new_store(proxy: FaultyProxy) -> Store:
    return Store(ProjectorSettings(redis_url=f"redis://127.0.0.1:{proxy.port}/0"))


async def times_out(monkeypatch: pytest.MonkeyPatch, asking: Awaitable[object]) -> None:
    """The timeout is short: nothing is answered while it lasts."""
    with monkeypatch.context() as patch:
        patch.setattr(node, "TIMEOUT", 0.2)
        with pytest.raises(Unavailable, match="TimeoutError"):
            await asking


def connections(client: Any) -> list[str]:
    """Returns the ids of the store's connections."""
    return [found["id"] for found in client.client_list() if found["name"] == "leadview-operator"]
