"""Requests with `Prefer: wait`: what ends a wait, how it is charged, and whom it costs nothing."""

import asyncio
import math
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest

from api import waiting
from api.documents import Documents
from api.errors import AccessDisabled, NoSuchRecord
from api.redis.links import links
from api.redis.serving import Serving
from api.redis.store import Store
from api.request import Request, credentials
from api.worker import Worker
from devstack.waiting import PATIENCE_SECONDS
from schemas import api_keys, names, resources
from tests.harness import control, crm
from tests.harness.api_server import (
    CONTACTS,
    HEALTH,
    LEADS,
    UNLIMITED,
    ApiServer,
    Response,
    Unhurried,
    connected,
    get,
    patient,
    read_all,
    responses,
    running_api,
    running_api_process,
)
from tests.harness.projection import Projection
from tests.harness.records import Caller, Records
from tests.harness.services import RedisService, calls_of
from tests.harness.waiting import eventually

PATH = LEADS + crm.LEAD
LONG = "wait=30"
"""No test takes so long: the wait is ended by what the test does."""
REMAINING = "x-ratelimit-remaining"
SLOW = {"key_rate_limit": "5/1h", "organization_rate_limit": "5/1h"}
"""Limits of which nothing comes back during a test."""
KEYS = 250
BEGIN = (crm.organization(), crm.api_key(), crm.contact())


class Few(Unhurried):
    """`worker` is the one whose connections these are."""

    max_connections = 3
    worker: ClassVar[Worker]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in Edge
        type(self).worker = self._worker
        super().connection_made(transport)


async def applied(projection: Projection, *messages: crm.Message) -> None:
    await projection.apply(*(message.record(offset) for offset, message in enumerate(messages, start=100)))


def asking(served: ApiServer, prefer: str = LONG, etag: str | None = None, **more: Any) -> "asyncio.Task[Response]":
    """Send a request in a thread."""
    headers = {"Prefer": prefer} | ({"If-None-Match": etag} if etag else {})
    return asyncio.create_task(asyncio.to_thread(served.get, PATH, key=crm.KEY, headers=headers, **more))


def waiting_request(prefer: bytes = LONG.encode()) -> Request:
    """Returns one that waits until the lead is deleted."""
    headers = {b"authorization": f"Bearer {crm.KEY}".encode(), b"prefer": prefer, b"if-none-match": b"*"}
    return Request(b"", "GET", PATH.encode(), headers, last_segment=crm.LEAD)


async def waits(projection: Projection) -> None:
    """Returns when the API looks after a request that waits."""
    before = calls_of(projection.client, "getrange")
    await eventually(lambda: calls_of(projection.client, "getrange") > before + 3, "a request waits")


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
        assert int(ended.headers[REMAINING]) == int(first.headers[REMAINING]) - charged


@pytest.mark.parametrize("is_new", [pytest.param(True, id="created"), pytest.param(False, id="changed")])
async def test_a_request_that_waited_is_charged_once_when_it_is_answered(
    projection: Projection, redis_server: RedisService, is_new: bool
) -> None:
    """Until then it uses nothing of the quota."""
    await applied(projection, *BEGIN, *([] if is_new else [crm.lead(1)]))
    with running_api(patient(redis_server.url, **SLOW)) as served:
        first = served.get(PATH, key=crm.KEY)
        answer = asking(served, etag=first.headers.get("etag"))
        await waits(projection)
        meanwhile = served.get(CONTACTS + crm.CONTACT, key=crm.KEY)
        assert (first.headers[REMAINING], meanwhile.headers[REMAINING]) == ("4", "3")
        await applied(projection, crm.lead(2, stage="STALE"))
        ended = await answer
        assert (ended.status, ended.headers[REMAINING]) == (200, "2")


@pytest.mark.parametrize(
    ("change", "status"),
    [
        pytest.param(crm.api_key(2, status="revoked"), 401, id="the key is revoked"),
        pytest.param(crm.organization(2, api_access=False), 403, id="access is switched off"),
    ],
)
async def test_a_wait_for_a_record_that_ends_with_a_refusal_is_not_charged(
    projection: Projection, redis_server: RedisService, change: crm.Message, status: int
) -> None:
    await applied(projection, *BEGIN)
    with running_api(patient(redis_server.url, **SLOW)) as served:
        answer = asking(served)
        await waits(projection)
        await applied(projection, change)
        assert (await answer).status == status
    assert not projection.client.exists(names.organization_limit(names.organization(crm.ORGANIZATION)))


@pytest.mark.parametrize("exists", [True, False])
async def test_a_request_beyond_the_limit_does_not_wait(
    projection: Projection, redis_server: RedisService, exists: bool
) -> None:
    """It is answered with 429 at once, like one without `Prefer`: for whom no request is left, none may begin."""
    await applied(projection, *BEGIN, *([crm.lead(1)] if exists else []))
    with running_api(patient(redis_server.url, **SLOW)) as served:
        spent = [served.get(PATH, key=crm.KEY) for _ in range(5)][-1]
        assert spent.headers[REMAINING] == "0"
        answer = await asking(served, etag=spent.headers.get("etag"))
        assert (answer.status, answer.headers.get("preference-applied")) == (429, None)


async def test_a_change_is_answered_with_429_if_no_request_is_left(
    projection: Projection, redis_server: RedisService
) -> None:
    """What ends a wait is charged, and so it is limited, like any answer."""
    await applied(projection, *BEGIN)
    with running_api(patient(redis_server.url, **SLOW)) as served:
        answer = asking(served)
        await waits(projection)
        assert [served.get(CONTACTS + crm.CONTACT, key=crm.KEY).status for _ in range(5)] == [200] * 5
        await applied(projection, crm.lead(1))
        assert (await answer).status == 429


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
        assert "preference-applied" not in answer.headers
        await applied(projection, crm.lead(1))
        for connection in connections:
            assert connection.recv(65536).startswith(b"HTTP/1.1 200 ")


async def test_those_that_wait_do_not_take_the_places_of_other_connections(
    projection: Projection, redis_server: RedisService
) -> None:
    await applied(projection, *BEGIN)
    settings = patient(redis_server.url, **UNLIMITED)
    with running_api(settings, edge=Few) as served, served.connect() as idle, ExitStack() as stack:
        idle.sendall(HEALTH)
        assert idle.recv(65536).startswith(b"HTTP/1.1 200 ")
        for number in range(1, 2 * Few.max_connections):
            stack.enter_context(served.connect()).sendall(get(PATH, crm.KEY, f"Prefer: {LONG}"))
            await eventually(partial(has_waiting, number), "the request waits")
        idle.sendall(HEALTH)
        assert idle.recv(65536).startswith(b"HTTP/1.1 200 "), "it is not closed"


def has_waiting(number: int) -> bool:
    return Few.worker.waiting.total == number


@pytest.mark.parametrize("kind", ["redis_server", "redis_shards"])
async def test_a_look_at_many_keys_takes_few_calls_and_finds_the_one_that_is_revoked(
    request: pytest.FixtureRequest, kind: str
) -> None:
    """On a cluster, it takes one call for each organization. All others wait on."""
    service = request.getfixturevalue(kind)
    async with watching(service) as watched:
        with service.client() as client, ExitStack() as stack:
            records = Records(client)
            callers = [records.caller() for _ in range(KEYS)]
            waiters = [waiter_of(caller) for caller in callers]
            assert {stack.enter_context(watched.place(waiter)) for waiter in waiters} == {True}
            assert await woken(watched, waiters) == waiters, "each is served once more: it was checked before the look"
            assert await woken(watched, waiters) == []
            records.revoke(callers[7].key)
            before = None if watched._store.sharded else calls_of(client, "mget")
            assert await woken(watched, waiters) == [waiters[7]]
            assert before is None or calls_of(client, "mget") - before == math.ceil(KEYS / waiting.MOST_IN_A_CALL)


async def test_each_look_wakes_those_whose_key_has_ended(redis_server: RedisService) -> None:
    """Whatever it was before: a revoked key may have been active while the request was checked last."""
    async with watching(redis_server) as watched:
        with redis_server.client() as client:
            records = Records(client)
            kept, expired, revoked = (records.caller() for _ in range(3))
            records.key(expired.key, expired.organization_id, expires_at=client.time()[0] * 1000 - 1)
            records.revoke(revoked.key)
            gone = Caller()
            waiters = [waiter_of(caller) for caller in (kept, expired, revoked, gone)]
            with ExitStack() as stack:
                assert {stack.enter_context(watched.place(waiter)) for waiter in waiters} == {True}
                assert await woken(watched, waiters) == waiters
                assert await woken(watched, waiters) == waiters[1:]
                records.organization(kept.organization_id, access=False)
                assert await woken(watched, waiters) == waiters


async def test_what_changes_while_redis_serves_the_request_ends_its_wait(
    projection: Projection, redis_server: RedisService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look finds it before the reply to the request arrives."""
    await applied(projection, *BEGIN, crm.lead(1))
    settings = patient(redis_server.url)
    control.complete_all(settings)
    worker, is_late = Worker(settings), asyncio.Event()
    serve = worker.store.serve

    async def served_before(*arguments: Any, **named: Any) -> Any:
        reply = await serve(*arguments, **named)
        if is_late.is_set():
            is_late.clear()
            await applied(projection, crm.organization(3, api_access=False))
            await waits(projection)
        return reply

    monkeypatch.setattr(worker.store, "serve", served_before)
    monkeypatch.setattr(waiting, "_MOST_SECONDS", 10 * PATIENCE_SECONDS)
    async with worker.running(None):
        answer = asyncio.create_task(Documents(resources.LEAD).read(worker, waiting_request(b"wait=999")))
        await waits(projection)
        is_late.set()
        await applied(projection, crm.organization(2))
        with pytest.raises(AccessDisabled):
            async with asyncio.timeout(PATIENCE_SECONDS):
                await answer


@asynccontextmanager
async def watching(service: RedisService) -> AsyncIterator[waiting.Waiting]:
    """Yields those that wait at a worker of this Redis, which looks after them only if it is told to."""
    settings = patient(service.url)
    control.complete_all(settings)
    servers = links(settings)
    async with connected(servers):
        yield waiting.Waiting(Store(settings, servers, Serving(servers)))


def waiter_of(caller: Caller) -> waiting.Waiter:
    return waiting.Waiter(credentials(caller.authorization.encode()), resources.LEAD, crm.LEAD)


async def woken(watched: waiting.Waiting, waiters: list[waiting.Waiter]) -> list[waiting.Waiter]:
    """Returns those of them that a look wakes. They wait on."""
    for waiter in waiters:
        waiter.over.clear()
    await watched.look()
    return [waiter for waiter in waiters if waiter.over.is_set()]


async def test_redis_that_is_lost_ends_a_wait(projection: Projection, served: ApiServer) -> None:
    await applied(projection, *BEGIN)
    answer = asking(served)
    await waits(projection)
    control_before = projection.client.hgetall(names.CONTROL)
    projection.client.delete(names.CONTROL)
    ended = await answer
    assert (ended.status, "preference-applied" in ended.headers) == (503, False)
    projection.client.hset(names.CONTROL, mapping=control_before)


@pytest.mark.parametrize(
    ("number", "drain"),
    [
        pytest.param(signal.SIGTERM, 0, id="at once"),
        pytest.param(signal.SIGTERM, 30, id="after a drain"),
        pytest.param(signal.SIGHUP, 0, id="replaced"),
    ],
)
async def test_a_worker_that_stops_answers_those_that_wait(
    projection: Projection, redis_server: RedisService, tmp_path: Path, number: signal.Signals, drain: int
) -> None:
    """The preference was not honoured: no change has come, and the time is not over."""
    await applied(projection, *BEGIN)
    settings = {"redis_url": redis_server.url, "api_drain_seconds": drain}
    with running_api_process(tmp_path / "log", **settings) as (child, api), api.connect() as connection:
        connection.sendall(get(PATH, crm.KEY, f"Prefer: {LONG}"))
        await waits(projection)
        os.kill(child.pid, number)
        [answer] = responses(await asyncio.to_thread(read_all, connection))
        assert (answer.status, answer.headers["connection"]) == (404, "close")
        assert "preference-applied" not in answer.headers


async def test_a_request_keeps_its_place_until_it_is_answered(
    projection: Projection, redis_server: RedisService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one wants the only place in every turn of the event loop, also while the record changes to what the first
    one has seen.
    """
    await applied(projection, *BEGIN, crm.lead(1))
    monkeypatch.setattr(waiting.Waiting, "most", 1)
    settings = patient(redis_server.url)
    control.complete_all(settings)
    worker = Worker(settings)
    request = waiting_request()

    async def take_the_place() -> None:
        is_admitted = False
        while not is_admitted:
            await asyncio.sleep(0)
            assert request.caller is not None
            with worker.waiting.place(waiting.Waiter(request.caller, resources.LEAD, crm.OTHER_LEAD)) as is_admitted:
                pass

    async with worker.running(None):
        answer = asyncio.create_task(Documents(resources.LEAD).read(worker, request))
        await waits(projection)
        taking = asyncio.create_task(take_the_place())
        await applied(projection, crm.lead(2, stage="STALE"))
        await waits(projection)
        assert not taking.done()
        await applied(projection, crm.deleted(resources.LEAD, 3))
        with pytest.raises(NoSuchRecord):
            await answer
        await taking


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
