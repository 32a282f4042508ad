"""The connections of a projector to Redis: pipelines that are not finished."""

import asyncio
from typing import Any

import pytest
import uvloop

from devstack.fault_proxy import Faults, FaultyProxy
from leadview.redis.access import access
from leadview.redis.connection import pack
from projector.errors import Unavailable
from projector.redis.servers import Node, ReplicationEpoch
from projector.redis.store import TIMEOUT, Store
from schemas.settings import ProjectorSettings
from tests.harness.services import RedisService
from tests.harness.waiting import eventually

FIRST, SECOND = (b"ECHO", b"first"), (b"ECHO", b"second")
SHORT = 0.3
"""A timeout for tests in which it is to be over, in seconds."""
MORE_THAN_BUFFERS_HOLD = 32 * 1024 * 1024


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_what_was_not_sent_in_time_is_never_sent(proxy: FaultyProxy, redis_server: RedisService, loop: Any) -> None:
    """Its generation may have been dropped meanwhile: the program that gave the batch up has acknowledged that."""

    async def give_up() -> None:
        store = new_store(proxy, SHORT)
        await answers(store)
        proxy.faults = Faults(stalled=True)
        with pytest.raises(Unavailable, match="did not reply within"):
            await store.ask_one(b"SET", b"late", bytes(MORE_THAN_BUFFERS_HOLD))
        proxy.faults = Faults()
        await answers(store)
        with redis_server.client() as client:
            await eventually(lambda: len(connections(client)) == 1, "the first connection has ended")
            assert not client.exists("late")
        await store.close()

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(give_up())


async def test_a_connection_that_is_closed_while_the_batch_is_confirmed(redis_server: RedisService) -> None:
    """On a cluster, its server may be found not to be a primary any more."""
    found = access(ProjectorSettings(redis_url=redis_server.url))
    node = Node(found.server(found.hosts[0]), ReplicationEpoch(), "leadview-operator", TIMEOUT)

    class Closing:
        def __init__(self) -> None:
            self.opened = 0
            self.confirmed: set[int] = set()

        async def confirm(self) -> None:
            node.close()

    with pytest.raises(Unavailable, match="is closed"):
        await node.send([pack(FIRST)], fence=Closing())
    assert await node.send([pack(SECOND)]) == [b"second"]
    node.close()


def new_store(proxy: FaultyProxy, timeout: float = TIMEOUT) -> Store:
    return Store(ProjectorSettings(redis_url=f"redis://127.0.0.1:{proxy.port}/0"), timeout=timeout)


async def answers(store: Store) -> None:
    """A store with a short timeout may need several attempts on a busy machine."""

    async def answered() -> bool:
        try:
            return bool(await store.ask_one(*SECOND) == b"second")
        except Unavailable:
            return False

    await eventually(answered, "it answers")


def connections(client: Any) -> list[str]:
    """Returns the ids of the store's connections."""
    return [found["id"] for found in client.client_list() if found["name"] == "leadview-operator"]
