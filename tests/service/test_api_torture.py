"""Many organizations at once, over a connection to Redis that fails in every way: each response is the caller's own, or
503 within twice the timeout, which is a second by default, and service resumes within a second."""

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from functools import partial

import orjson
import pytest
from msgspec import Struct, field

from devstack.fault_proxy import Faults, FaultyProxy
from schemas.settings import ApiSettings
from tests.harness.api_server import LEADS, UNLIMITED, ApiServer, get, running_api
from tests.harness.records import Caller, Records
from tests.harness.services import RedisService
from tests.harness.waiting import Stopwatch, assert_within, eventually, wait_until

ORGANIZATIONS = 60
CALLERS = 40
MOST_IN_FLIGHT = 25
TIMEOUT = 1.5
LONGEST = 2 * TIMEOUT
"""How long a request takes at most, in seconds: it waits for Redis once. By default, a third of this. The longer it is,
the less it matters how busy the machine is."""
ANSWERS = 60
"""Under each fault, at least."""


class Seen(Struct):
    """What the callers received."""

    statuses: Counter[int] = field(default_factory=Counter)
    broken_off: int = 0
    slowest: float = 0.0
    wrong: list[str] = field(default_factory=list)

    def has_answers(self, least: int) -> bool:
        return self.statuses.total() >= least


class Population(Struct):
    """Organizations with one lead each, whose body names its organization."""

    callers: list[Caller]
    leads: list[str]


@pytest.fixture
def population(redis_server: RedisService) -> Iterator[Population]:
    with redis_server.client() as client:
        records = Records(client)
        callers = [records.caller() for _ in range(ORGANIZATIONS)]
        leads = [
            records.lead(each.organization_id, {"owner": each.organization_id, "pad": "p" * random.randrange(3000)})
            for each in callers
        ]
        yield Population(callers, leads)


@pytest.fixture
def api(proxy: FaultyProxy) -> Iterator[ApiServer]:
    settings = ApiSettings(
        redis_url=proxy.url, api_redis_timeout=TIMEOUT, api_max_in_flight=MOST_IN_FLIGHT, **UNLIMITED
    )
    with running_api(settings) as api:
        yield api


def test_no_response_ever_reaches_another_request(api: ApiServer, proxy: FaultyProxy, population: Population) -> None:
    seen = asyncio.run(_torture(api, proxy, population))
    assert seen.wrong == []
    assert seen.statuses.keys() == {200, 404, 503}
    assert seen.statuses[200] > 50
    assert seen.statuses.total() > 1000
    assert seen.broken_off > 20
    assert seen.slowest < LONGEST, "nobody waits for the timeouts of others"


def faults_of(chance: random.Random) -> Iterator[tuple[float, Faults]]:
    """For how long at least, and what."""
    yield 0.3, Faults()
    for _ in range(6):
        yield 0.15, Faults(slice_bytes=chance.randrange(1, 200))
        yield 0.2, Faults(end_after=chance.randrange(0, 20_000), end=chance.choice(["reset", "close"]))
        yield 0.1, Faults(delay_seconds=0.01, slice_bytes=1000)
    yield LONGEST, Faults(stalled=True)
    yield LONGEST, Faults(end_after=chance.randrange(500, 20_000), end="stall")
    yield 0.1, Faults()


async def _torture(api: ApiServer, proxy: FaultyProxy, population: Population) -> Seen:
    seen, chance, over = Seen(), random.Random(1), asyncio.Event()
    with Stopwatch() as stopwatch:
        calling = [
            asyncio.create_task(_caller(api, population, seen, over, seed, stopwatch)) for seed in range(CALLERS)
        ]
        for seconds, faults in faults_of(chance):
            proxy.faults = faults
            answered = seen.statuses.total()
            await asyncio.sleep(seconds)
            await eventually(partial(seen.has_answers, answered + ANSWERS), "callers were answered")
            if chance.random() < 0.3:
                proxy.reset_all()
        proxy.faults = Faults()
        await eventually(lambda: seen.statuses[200] > 50 and seen.broken_off > 20, "callers were served and broke off")
        over.set()
        await asyncio.gather(*calling)
    return seen


async def _caller(
    api: ApiServer, population: Population, seen: Seen, over: asyncio.Event, seed: int, stopwatch: Stopwatch
) -> None:
    """Asks for its own leads and for others', and breaks off now and then, over one connection after another."""
    chance = random.Random(seed)
    while not over.is_set():
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        while not over.is_set():
            caller, owner = chance.randrange(ORGANIZATIONS), chance.randrange(ORGANIZATIONS)
            owner = caller if chance.random() < 0.8 else owner
            request_id = f"{seed}-{chance.randrange(10**9)}"
            lead, key = population.leads[owner], population.callers[caller]
            writer.write(get(LEADS + lead, key.key, f"X-Request-Id: {request_id}"))
            if chance.random() < 0.05:
                seen.broken_off += 1
                break
            started = stopwatch.seconds
            status, echoed, body = await _response(reader)
            seen.slowest = max(seen.slowest, stopwatch.seconds - started)
            seen.statuses[status] += 1
            right = {200} if owner == caller else {404}
            if echoed != request_id or status not in right | {503} or (status == 200 and key.organization_id != body):
                seen.wrong.append(f"{status} {echoed} {request_id} {body}")
        writer.transport.abort()


async def _response(reader: asyncio.StreamReader) -> tuple[int, str, str]:
    """Returns the status, the request id, and the organization in the document."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode()
    fields = dict(line.split(": ", 1) for line in head.split("\r\n")[1:-2])
    body = orjson.loads(await reader.readexactly(int(fields["content-length"])))
    return int(head[9:12]), fields["x-request-id"], body.get("owner", "")


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(Faults(stalled=True), id="a stall"),
        pytest.param(Faults(end_after=0, end="reset"), id="reset at once"),
        pytest.param(Faults(end_after=60, end="stall"), id="a stall after some replies"),
        pytest.param(Faults(slice_bytes=1, delay_seconds=0.05), id="a byte at a time"),
    ],
)
def test_service_resumes_within_a_second(
    api: ApiServer, proxy: FaultyProxy, population: Population, faults: Faults
) -> None:
    caller, lead = population.callers[0], population.leads[0]

    def status() -> int:
        return api.get(LEADS + lead, key=caller.key).status

    wait_until(lambda: status() == 200, "it is served")
    proxy.faults = faults
    proxy.reset_all()
    for _ in range(3):
        with Stopwatch() as stopwatch:
            assert status() == 503
            assert stopwatch.seconds < LONGEST
    proxy.faults = Faults()
    assert_within(1, lambda: status() == 200, "service is back")
