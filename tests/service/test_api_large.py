"""Large documents, and organizations that ask for many: read by themselves, once charged, and in nobody's way."""

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import takewhile
from urllib.parse import urlsplit

import pytest

from api.redis.link import LARGE_EACH, Link
from api.redis.links import links
from api.redis.serving import Serving
from devstack.fault_proxy import Faults, FaultyProxy, faulty_proxy
from devstack.redis_cluster import RedisCluster
from runtime.redis.access import Address
from runtime.redis.errors import Unavailable
from schemas import api_keys, names, resources
from schemas.layouts import LEAD_BODY, PART, WHOLE
from schemas.settings import ApiSettings
from tests.harness import api_server, control
from tests.harness.api_server import (
    LEADS,
    ApiServer,
    Response,
    connected,
    in_kernel,
    patient,
    read_all,
    responses,
    running_api,
)
from tests.harness.generations import generation
from tests.harness.records import Caller, Records
from tests.harness.services import RedisService, client_of
from tests.harness.waiting import PATIENCE_SECONDS, eventually, wait_until

LARGE = 1_000_000
LIMIT = (100, 24 * 3600)
"""Nothing comes back while a test runs."""
READ, SECOND_PART = (b"$%d\r\n%d\r\n" % (len(str(at)), at) for at in (PART - 1, PART))
"""Where the first part of a large value ends, and where the second one begins."""


@pytest.fixture
def api(proxy: FaultyProxy) -> Iterator[ApiServer]:
    with running_api(patient(proxy.url)) as api:
        yield api


@pytest.fixture
def caller(records: Records) -> Caller:
    return records.caller(key_limit=LIMIT, organization_limit=LIMIT)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(64) as pool:
        yield pool


def text(size: int = LARGE, mark: str = "x") -> dict[str, str]:
    return {"pad": mark * size}


def get(api: ApiServer, caller: Caller, lead: str, **how: str) -> Response:
    return api.get(LEADS + lead, key=caller.key, **how)  # type: ignore[arg-type]  # method


def name_of(caller: Caller, lead: str, number: int = 1) -> bytes:
    return names.document(resources.LEAD, caller.name, generation(number), lead)


def etag_of(value: bytes) -> str:
    return f'W/"{value[22:34].hex()}"'


def remaining(response: Response) -> int:
    return int(response.headers["x-ratelimit-remaining"])


@pytest.mark.parametrize("more", [-1, 0, 1, LARGE])
def test_value_of_any_size_is_served_and_charged_once(
    api: ApiServer, records: Records, caller: Caller, more: int
) -> None:
    empty = len(b'{"pad":""}')
    lead = records.lead(caller.organization_id, text(WHOLE.stop - LEAD_BODY - empty + more))
    value = records.read(name_of(caller, lead))
    assert len(value) == WHOLE.stop + more
    first = get(api, caller, lead)
    assert (first.status, first.body, first.headers["etag"]) == (200, value[LEAD_BODY:], etag_of(value))
    assert remaining(first) == 99
    head = get(api, caller, lead, method="HEAD")
    assert (head.status, head.headers["content-length"], remaining(head)) == (200, str(len(first.body)), 98)
    for sent, status in ((first.headers["etag"], 304), ("*", 304), (etag_of(bytes(34)), 200)):
        assert api.get(LEADS + lead, key=caller.key, headers={"If-None-Match": sent}).status == status
    connections = [each for each in records.client.client_list() if each["name"] == "leadview-api"]
    assert len(connections) == (1 if more < 0 else 2)


def test_small_reply_never_waits_for_a_large_one(
    api: ApiServer, proxy: FaultyProxy, records: Records, caller: Caller, pool: ThreadPoolExecutor
) -> None:
    lead, small = (records.lead(caller.organization_id, text(size)) for size in (LARGE, 10))
    other = records.caller()
    another = records.lead(other.organization_id, text(10))
    proxy.faults = Faults(held=READ)
    asked = [pool.submit(get, api, caller, lead) for _ in range(40)]
    wait_until(lambda: proxy.holding, "a large value is asked for")
    for _ in range(10):
        assert (get(api, other, another).status, get(api, caller, small).status) == (200, 200)
    proxy.faults = Faults()
    assert {each.result(PATIENCE_SECONDS).status for each in asked} == {200}


def replaced(
    records: Records, caller: Caller, lead: str, size: int = LARGE + 1, mark: str = "y", state: bytes = b"L"
) -> None:
    another = records.lead(caller.organization_id, text(size, mark), state=state)
    records.client.rename(name_of(caller, another), name_of(caller, lead))


def promoted(records: Records, caller: Caller, lead: str) -> None:
    """The former generation has something else by then, as if it was being dropped."""
    another = records.lead(caller.organization_id, text(LARGE, "z"), generation=2)
    records.client.rename(name_of(caller, another, 2), name_of(caller, lead, 2))
    records.client.delete(name_of(caller, lead))
    control.write(records.client, live=2, written=(1, 2))


@pytest.mark.parametrize(
    "held", [pytest.param(READ, id="the first part"), pytest.param(SECOND_PART, id="the second part")]
)
@pytest.mark.parametrize(
    ("change", "status", "served"),
    [
        pytest.param(replaced, 200, (LARGE + 1, "y"), id="another version"),
        pytest.param(partial(replaced, size=3, mark="s"), 200, (3, "s"), id="a small version"),
        pytest.param(promoted, 200, (LARGE, "z"), id="another generation"),
        pytest.param(
            lambda records, *_: records.client.client_kill_filter(_type="normal", skipme=True),
            200,
            (LARGE, "x"),
            id="the connections are lost",
        ),
        pytest.param(partial(replaced, state=b"D"), 404, None, id="deleted"),
        pytest.param(
            lambda records, caller, lead: records.client.delete(name_of(caller, lead)), 404, None, id="vanished"
        ),
        # Nothing is known of the lead then.
        pytest.param(lambda records, *_: records.client.flushdb(), 503, None, id="Redis is emptied"),
    ],
)
def test_large_document_that_changes_while_it_is_read_is_served_whole_or_not(
    api: ApiServer,
    proxy: FaultyProxy,
    records: Records,
    caller: Caller,
    pool: ThreadPoolExecutor,
    change: Callable[[Records, Caller, str], object],
    status: int,
    served: tuple[int, str] | None,
    held: bytes,
) -> None:
    """One version or the other, never a mix, and charged once."""
    lead = records.lead(caller.organization_id, text())
    proxy.faults = Faults(held=held)
    asked = pool.submit(get, api, caller, lead)
    wait_until(lambda: proxy.holding, "it is charged, and this part is asked for")
    change(records, caller, lead)
    proxy.faults = Faults()
    answer = asked.result(PATIENCE_SECONDS)
    assert answer.status == status
    if status != 503:
        assert remaining(answer) == 99
    if served:
        assert answer.json == text(*served)
        [name] = records.client.scan_iter(caller.name + (b"2.*l*" if change is promoted else b"1.*l*"))
        assert answer.headers["etag"] == etag_of(records.read(name))


def test_the_connection_for_large_values_stalls(proxy: FaultyProxy, records: Records) -> None:
    caller = records.caller(key_limit=(1_000_000, 1), organization_limit=(1_000_000, 1))
    lead = records.lead(caller.organization_id, text())
    with running_api(ApiSettings(redis_url=proxy.url)) as api:
        wait_until(lambda: get(api, caller, lead).status == 200, "large values are served")
        proxy.faults = Faults(held=READ)
        assert get(api, caller, lead).status == 503
        proxy.faults = Faults()
        wait_until(lambda: get(api, caller, lead).status == 200, "large values are served again")


def test_forgotten_connection_for_large_values_costs_no_request(
    proxy: FaultyProxy, records: Records, pool: ThreadPoolExecutor
) -> None:
    """What stands between the machines passes nothing on, and tells nobody. The request uses another connection."""
    caller = records.caller(key_limit=LIMIT, organization_limit=LIMIT)
    lead = records.lead(caller.organization_id, text())
    with running_api(ApiSettings(redis_url=proxy.url, api_redis_timeout=6)) as api:
        for remaining_then in (99, 88):
            assert (get(api, caller, lead).status, remaining(get(api, caller, lead))) == (200, remaining_then - 1)
            proxy.forgotten = {proxy.accepted}
            answers = list(pool.map(lambda _: get(api, caller, lead), range(9)))
            assert [each.status for each in answers] == [200] * 9
            assert {each.body for each in answers} == {answers[0].body}


async def test_forgotten_connection_for_large_values_is_found_without_a_request(
    proxy: FaultyProxy, records: Records
) -> None:
    """It is used twice a second, as the first connection is, so that nothing forgets it, and a dead one is replaced."""
    caller = records.caller()
    lead = records.lead(caller.organization_id, text())
    settings = ApiSettings(redis_url=proxy.url, api_redis_timeout=2)
    control.complete_all(settings)
    api_servers = links(settings)
    async with connected(api_servers):
        link, name = api_servers.link(b""), name_of(caller, lead)
        serving = Serving(api_servers)
        polling = asyncio.create_task(serving.poll())
        parts, *_ = await link.read_large(b"", name, None)
        large = link._large
        assert large
        received_at = large.received_at
        await eventually(lambda: large.received_at > received_at, "it is used")
        proxy.forgotten = {proxy.accepted}
        await eventually(lambda: large.closed, "it is found")
        assert (await link.read_large(b"", name, None))[0] == parts
        polling.cancel()
        await asyncio.gather(polling, return_exceptions=True)


def test_refused_charge_reads_no_large_value(api: ApiServer, records: Records, caller: Caller) -> None:
    """While Redis refuses to write, the worker's own limiter decides, and what it refuses costs Redis as little."""
    caller = records.caller(key_limit=(2, 24 * 3600))
    lead = records.lead(caller.organization_id, text())
    name, client = name_of(caller, lead).decode(), records.client
    with records.full(), client.monitor() as monitor:  # type: ignore[no-untyped-call]
        statuses = [get(api, caller, lead).status for _ in range(6)]
        client.echo("over")
        seen = takewhile(lambda command: "over" not in command, (each["command"] for each in monitor.listen()))
        reads = [command for command in seen if command.startswith("GETRANGE") and name in command]
    assert statuses == [200, 200, 429, 429, 429, 429]
    assert len(reads) == len(statuses) + 2 * (LARGE // PART + 2), "the script's, then the parts and the head again"


@pytest.mark.parametrize("worst", ["a key in use", "a key that was never used", "made-up keys"])
def test_organization_at_its_worst_takes_no_place_of_another_one(
    proxy: FaultyProxy, records: Records, pool: ThreadPoolExecutor, worst: str
) -> None:
    """Redis does not answer, and far more requests than may wait for it name the first one. If their keys are made up,
    they take no place of the organization that they name."""
    named = records.caller()
    keys, harmed = [named.key] * 30, records.caller()
    if worst == "made-up keys":
        keys, harmed = [api_keys.mint(named.organization_id) for _ in keys], named
    lead, own = (records.lead(each.organization_id, {}) for each in (named, harmed))
    with running_api(patient(proxy.url, api_max_in_flight=16, api_unknown_key_limit="1000/1s")) as api:
        for each, id_ in ((named, lead), (harmed, own)) if worst != "a key that was never used" else ():
            assert get(api, each, id_).status == 200
        proxy.faults = Faults(held=api_keys.organization_tag(named.organization_id).encode())
        asked = [pool.submit(api.get, LEADS + lead, key=key) for key in keys]
        wait_until(lambda: sum(each.done() for each in asked) >= 10 and proxy.holding, "the others are told at once")
        with ExitStack() as stack:
            others = [stack.enter_context(api.connect()) for _ in range(3)]
            for other in others:
                other.sendall(api_server.get(LEADS + own, harmed.key, "Connection: close"))
            wait_until(lambda: not any(unread for _, unread in in_kernel(api.port)), "the API has read them")
            proxy.faults = Faults()
            assert [it.status for other in others for it in responses(read_all(other))] == [200] * 3
        statuses = {each.result(PATIENCE_SECONDS).status for each in asked}
    assert statuses == {401 if harmed is named else 200, 503}


async def test_large_values_on_their_way_are_few(redis_server: RedisService, records: Records) -> None:
    """For one organization, and another one does not wait for the first one's."""
    name = b"lv3:large"
    records.client.set(name, b"x" * LARGE)
    with faulty_proxy(urlsplit(redis_server.url).port or 6379) as proxy:
        link = Link(Address(port=proxy.port), timeout=PATIENCE_SECONDS, max_in_flight=100)
        async with connected(link):
            proxy.faults = Faults(held=READ)
            calls = [asyncio.create_task(link.read_large(b"a", name, None)) for _ in range(10)]
            await eventually(lambda: proxy.holding, "the first ones are sent")
            assert link.in_flight == LARGE_EACH
            other = asyncio.create_task(link.read_large(b"b", name, None))
            await eventually(lambda: link.in_flight == LARGE_EACH + 1, "another one's is sent")
            calls[0].cancel()
            await link.connection.call((b"PING",))  # the next caller would have been sent by then
            assert link.in_flight == LARGE_EACH + 1, "what was sent is still on its way"
            proxy.faults = Faults()
            for parts, *_ in await asyncio.gather(other, *calls[1:]):
                assert len(b"".join(parts)) == LARGE
            link.disconnect("the test is over")
            with pytest.raises(Unavailable):
                await link.read_large(b"a", name, None)


def test_large_document_is_served_while_its_slot_moves(cluster: RedisCluster) -> None:
    """The key has moved already, or its node has not heard yet that it did."""
    with client_of(cluster.url) as client, running_api(patient(cluster.url)) as api:
        records = Records(client)
        caller = records.caller(key_limit=LIMIT, organization_limit=LIMIT)
        lead = records.lead(caller.organization_id, text())
        assert get(api, caller, lead).status == 200
        slot = names.tag_slot(api_keys.organization_tag(caller.organization_id).encode())
        source = cluster.owner(slot)
        with cluster.moving(slot, next(primary for primary in cluster.primaries if primary is not source)) as move:
            move()
            moving = get(api, caller, lead)
        moved = get(api, caller, lead)
        assert [(answer.status, answer.json) for answer in (moving, moved)] == [(200, text())] * 2
        assert [remaining(answer) for answer in (moving, moved)] == [98, 97]
