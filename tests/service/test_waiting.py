"""Requests with `Prefer: wait`: what ends a wait, how it is charged, and whom it costs nothing."""

import asyncio
import os
import signal
import socket
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from api import waiting
from schemas import api_keys, names, resources
from tests.harness import crm
from tests.harness.api_server import (
    LEADS,
    ApiServer,
    Response,
    get,
    patient,
    read_all,
    responses,
    running_api,
    running_api_process,
)
from tests.harness.projection import Projection
from tests.harness.services import RedisService, calls_of
from tests.harness.waiting import eventually

PATH = LEADS + crm.LEAD
LONG = "wait=30"
"""No test takes so long: the wait is ended by what the test does."""
SLOW = {"key_rate_limit": "5/1h", "organization_rate_limit": "5/1h"}
"""Limits of which nothing comes back during a test."""
BEGIN = (crm.organization(), crm.api_key(), crm.contact())


async def applied(projection: Projection, *messages: crm.Message) -> None:
    await projection.apply(*(message.record(offset) for offset, message in enumerate(messages, start=100)))


def asking(served: ApiServer, prefer: str = LONG, etag: str | None = None, **more: Any) -> "asyncio.Task[Response]":
    """Send a request in a thread."""
    headers = {"Prefer": prefer} | ({"If-None-Match": etag} if etag else {})
    return asyncio.create_task(asyncio.to_thread(served.get, PATH, key=crm.KEY, headers=headers, **more))


async def waits(projection: Projection) -> None:
    """Returns when the API looks after a request that waits."""
    before = calls_of(projection.client, "evalsha")
    await eventually(lambda: calls_of(projection.client, "evalsha") > before + 3, "a request waits")


@pytest.fixture
def projection(alone: Projection) -> Projection:
    return alone


@pytest.mark.parametrize(
    ("change", "status"),
    [
        pytest.param(crm.lead(2, stage="STALE"), 200, id="changed"),
        pytest.param(crm.deleted(resources.LEAD, 2), 404, id="deleted"),
        pytest.param(crm.contact(2, first_name="Grace"), 200, id="its contact is changed"),
        pytest.param(crm.api_key(2, status="revoked"), 401, id="the key is revoked"),
        pytest.param(crm.organization(2, api_access=False), 403, id="access is switched off"),
        pytest.param(crm.deleted(resources.ORGANIZATION, 2), 403, id="the organization is deleted"),
    ],
)
async def test_a_wait_for_another_etag_ends_when_the_record_changes(
    projection: Projection, served: ApiServer, change: crm.Message, status: int
) -> None:
    await applied(projection, *BEGIN, crm.lead(1))
    first = served.get(PATH, key=crm.KEY)
    answer = asking(served, etag=first.headers["etag"])
    await waits(projection)
    assert not answer.done()
    await applied(projection, change)
    ended = await answer
    assert ended.status == status
    assert (ended.headers.get("preference-applied") == LONG) is (status in (200, 404))
    if status == 200:
        assert ended.headers["etag"] != first.headers["etag"]
        assert ended.body == served.get(PATH, key=crm.KEY).body


async def test_a_wait_for_a_record_ends_when_it_is_created(projection: Projection, served: ApiServer) -> None:
    await applied(projection, *BEGIN)
    answer = asking(served, 'respond-async, Wait="0030"; x=y')
    await waits(projection)
    await applied(projection, crm.lead(1))
    ended = await answer
    assert (ended.status, ended.headers["preference-applied"]) == (200, LONG)
    assert ended.json["id"] == crm.LEAD


@pytest.mark.parametrize(
    ("exists", "status", "charged"),
    [pytest.param(True, 304, 0, id="unchanged"), pytest.param(False, 404, 1, id="absent")],
)
async def test_a_wait_ends_after_its_time(
    projection: Projection, redis_server: RedisService, exists: bool, status: int, charged: int
) -> None:
    await applied(projection, *BEGIN, *([crm.lead(1)] if exists else []))
    with running_api(patient(redis_server.url, **SLOW)) as served:
        first = served.get(PATH, key=crm.KEY)
        ended = await asking(served, "wait=1", first.headers.get("etag"))
        assert (ended.status, ended.headers["preference-applied"]) == (status, "wait=1")
        remaining = int(first.headers["x-ratelimit-remaining"]) - charged
        assert int(ended.headers["x-ratelimit-remaining"]) == remaining


async def test_a_request_that_waited_is_charged_once(projection: Projection, redis_server: RedisService) -> None:
    await applied(projection, *BEGIN)
    with running_api(patient(redis_server.url, **SLOW)) as served:
        answer = asking(served)
        await waits(projection)
        await applied(projection, crm.lead(1))
        created = await answer
        assert (created.status, created.headers["x-ratelimit-remaining"]) == (200, "4")
        answer = asking(served, etag=created.headers["etag"])
        await waits(projection)
        await applied(projection, crm.lead(2, stage="STALE"))
        changed = await answer
        assert (changed.status, changed.headers["x-ratelimit-remaining"]) == (200, "3")


@pytest.mark.parametrize(
    ("prefer", "etag", "method", "status", "honoured"),
    [
        pytest.param(LONG, None, "GET", 200, LONG, id="it exists"),
        pytest.param("wait=99", '"000000000000000000000000"', "GET", 200, LONG, id="it differs already"),
        pytest.param(LONG, "own", "HEAD", 304, None, id="HEAD does not wait"),
        pytest.param("wait=0", "own", "GET", 304, None, id="no time"),
        pytest.param("wait=soon", "own", "GET", 304, None, id="no number"),
        pytest.param("wait", "own", "GET", 304, None, id="no value"),
        pytest.param("wait=-1, wait=9", "own", "GET", 304, None, id="the first one counts"),
    ],
)
async def test_what_need_not_wait_is_answered_at_once(
    projection: Projection,
    served: ApiServer,
    prefer: str,
    etag: str | None,
    method: str,
    status: int,
    honoured: str | None,
) -> None:
    await applied(projection, *BEGIN, crm.lead(1))
    tag = served.get(PATH, key=crm.KEY).headers["etag"] if etag == "own" else etag
    answer = await asking(served, prefer, tag, method=method)
    assert (answer.status, answer.headers.get("preference-applied")) == (status, honoured)


async def test_more_requests_of_an_organization_than_may_wait_are_answered_at_once(
    projection: Projection, served: ApiServer
) -> None:
    """When one of those that wait has gone, another one may."""
    await applied(projection, *BEGIN)
    sent = get(PATH, crm.KEY, f"Prefer: {LONG}")

    async def refused() -> bool:
        answer = await asyncio.to_thread(served.get, PATH, key=crm.KEY, headers={"Prefer": "wait=1"})
        return answer.status == 404 and "preference-applied" not in answer.headers

    async def admitted() -> bool:
        return not await refused()

    assert served.get(PATH, key=crm.KEY).status == 404, "the key is known from now on"
    with ExitStack() as stack:
        connections = [stack.enter_context(served.connect()) for _ in range(waiting.MOST_OF_ONE)]
        for connection in connections:
            connection.sendall(sent)
        await eventually(refused, "all places are taken")
        connections.pop().close()
        await eventually(admitted, "the place of a closed connection is free")
        half_closed = connections.pop()
        half_closed.shutdown(socket.SHUT_WR)
        [answer] = responses(await asyncio.to_thread(read_all, half_closed))
        assert answer.status == 404, "it may be closed altogether"
        await applied(projection, crm.lead(1))
        for connection in connections:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


async def test_redis_that_is_lost_ends_a_wait(projection: Projection, served: ApiServer) -> None:
    await applied(projection, *BEGIN)
    answer = asking(served)
    await waits(projection)
    control_before = projection.client.hgetall(names.CONTROL)
    projection.client.delete(names.CONTROL)
    ended = await answer
    assert (ended.status, "preference-applied" in ended.headers) == (503, False)
    projection.client.hset(names.CONTROL, mapping=control_before)


@pytest.mark.parametrize("drain", [0, 30])
async def test_a_worker_that_stops_answers_those_that_wait(
    projection: Projection, redis_server: RedisService, tmp_path: Path, drain: int
) -> None:
    await applied(projection, *BEGIN)
    settings = {"redis_url": redis_server.url, "api_drain_seconds": drain}
    with running_api_process(tmp_path / "log", **settings) as (child, api), api.connect() as connection:
        connection.sendall(get(PATH, crm.KEY, f"Prefer: {LONG}"))
        await waits(projection)
        os.kill(child.pid, signal.SIGTERM)
        [answer] = responses(await asyncio.to_thread(read_all, connection))
        assert (answer.status, answer.headers["connection"]) == (404, "close")


async def test_requests_of_two_organizations_wait_at_two_servers(sharded: Projection) -> None:
    """On a cluster, their records are on several servers, and each is asked for its own."""
    others: dict[str, Any] = {"organization_id": crm.OTHER_ORGANIZATION}
    other_key = api_keys.mint(crm.OTHER_ORGANIZATION)
    await applied(sharded, *BEGIN)
    await applied(
        sharded,
        crm.organization(id=crm.OTHER_ORGANIZATION, **others),
        crm.api_key(id=crm.uuid(0xF7), hash=api_keys.key_hash(other_key), **others),
    )
    with running_api(patient(sharded.settings.redis_url)) as served:
        first = asking(served)
        second = asyncio.create_task(
            asyncio.to_thread(served.get, LEADS + crm.OTHER_LEAD, key=other_key, headers={"Prefer": LONG})
        )
        await asyncio.sleep(0)
        await applied(sharded, crm.lead(1, id=crm.OTHER_LEAD, **others))
        assert (await second).status == 200
        assert not first.done()
        await applied(sharded, crm.lead(1))
        assert (await first).status == 200
