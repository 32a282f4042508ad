"""Redis becomes unavailable in every possible way: the API answers 503 and nothing else, and serves again within a
second of Redis's return."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
import redis

from devstack.ports import free_port
from devstack.redis_server import RedisServer
from schemas import names, resources
from schemas.settings import ApiSettings
from tests.harness import control
from tests.harness.api_server import LEADS, ApiServer, Response, patient, running_api
from tests.harness.faulty_proxy import faulty_proxy
from tests.harness.generations import generation
from tests.harness.processes import running_api_process
from tests.harness.records import Caller, Records
from tests.harness.stopwatch import Stopwatch
from tests.harness.waiting import assert_within, wait_until

Change = Callable[[redis.Redis], object]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RedisServer]:
    with RedisServer.start(tmp_path, appendonly=True, options=["--appendfsync", "always"]) as server:
        yield server


@pytest.fixture
def client(server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as client:
        yield client


@pytest.fixture
def records(client: redis.Redis) -> Records:
    return Records(client)


@pytest.fixture
def api(server: RedisServer) -> Iterator[ApiServer]:
    with running_api(ApiSettings(redis_url=server.url)) as api:
        yield api


@pytest.fixture
def caller(records: Records) -> Caller:
    return records.caller()


def ask(api: ApiServer, caller: Caller) -> Response:
    return api.get(LEADS + str(uuid4()), key=caller.key)


def assert_unavailable(answer: Response) -> None:
    assert (answer.status, answer.error) == (503, "service_unavailable")
    assert answer.json["retry_after"] == int(answer.headers["retry-after"]) >= 1
    assert answer.headers["cache-control"] == "no-store"


def assert_unavailable_within_a_second(api: ApiServer, caller: Caller) -> None:
    with Stopwatch() as stopwatch:
        assert_unavailable(ask(api, caller))
        assert stopwatch.seconds < 1


def assert_back_within_a_second(api: ApiServer, caller: Caller) -> None:
    assert_within(1, lambda: ask(api, caller).status == 404, "service is back")


def test_killed_and_restarted(api: ApiServer, caller: Caller, server: RedisServer) -> None:
    assert ask(api, caller).status == 404
    server.kill()
    assert_unavailable_within_a_second(api, caller)
    assert (api.get("/readyz").status, api.get("/healthz").status) == (503, 200)
    server.restart()
    assert_back_within_a_second(api, caller)


def test_stalled(api: ApiServer, caller: Caller, server: RedisServer) -> None:
    server.pause()
    assert_unavailable_within_a_second(api, caller)
    assert_unavailable_within_a_second(api, caller)
    server.resume()
    assert_back_within_a_second(api, caller)


def test_an_outage_of_some_seconds_does_not_slow_the_return(
    api: ApiServer, caller: Caller, server: RedisServer
) -> None:
    server.pause()
    time.sleep(2.5)  # longer than the generation is trusted
    assert_unavailable(ask(api, caller))
    server.resume()
    assert_back_within_a_second(api, caller)


def test_never_there(tmp_path: Path) -> None:
    with running_api(ApiSettings(redis_url="redis://127.0.0.1:1/0"), ready=False) as api:
        assert_unavailable(ask(api, Caller()))
        assert_unavailable(api.get("/readyz"))
        assert api.get("/healthz").status == 200
        assert api.get(LEADS + "x").status == 401  # responses that do not need Redis are unchanged
        assert api.get(LEADS + "x", key="lv_live_x").error == "invalid_api_key"


def test_script_flush(api: ApiServer, records: Records, client: redis.Redis) -> None:
    caller = records.caller(key_limit=(100, 360_000))  # nothing comes back while the test runs
    assert ask(api, caller).headers["x-ratelimit-remaining"] == "99"
    client.script_flush()
    assert ask(api, caller).headers["x-ratelimit-remaining"] == "98"  # charged once


@pytest.mark.parametrize(
    ("broken", "repaired"),
    [
        pytest.param(
            lambda client: client.replicaof("127.0.0.1", "1"),
            lambda client: client.replicaof("NO", "ONE"),
            id="MASTERDOWN",
        ),
        pytest.param(
            lambda client: client.acl_setuser("default", enabled=True, commands=["-evalsha"]),
            lambda client: client.acl_setuser("default", enabled=True, nopass=True, commands=["+@all"], keys=["*"]),
            id="NOPERM",
        ),
    ],
)
def test_error_replies(api: ApiServer, caller: Caller, client: redis.Redis, broken: Change, repaired: Change) -> None:
    client.config_set("replica-serve-stale-data", "no")
    broken(client)
    wait_until(lambda: ask(api, caller).status == 503, "Redis refuses")
    assert_unavailable(ask(api, caller))
    repaired(client)
    assert_back_within_a_second(api, caller)


def test_a_value_of_another_type(api: ApiServer, caller: Caller, client: redis.Redis) -> None:
    client.delete(caller.name)
    client.lpush(caller.name, "x")
    assert_unavailable(ask(api, caller))


def test_the_live_generation_is_served(api: ApiServer, records: Records, caller: Caller, client: redis.Redis) -> None:
    lead_id = records.lead(caller.organization_id, {"generation": 1}, generation=1)
    first, second = (names.document(resources.LEAD, caller.name, generation(number), lead_id) for number in (1, 2))
    client.set(second, records.read(first).replace(b'"generation":1', b'"generation":2'))

    def served() -> object:
        return api.get(LEADS + lead_id, key=caller.key).json.get("generation")

    assert served() == 1
    control.write(client, live=2, written=(1, 2), previous=1)
    assert served() == 2, "the next answer is of generation 2"
    control.write(client, live=1, written=(1, 2), previous=2)
    assert served() == 1


def test_an_emptied_redis_is_distinguished_from_missing_records(
    api: ApiServer, records: Records, caller: Caller, client: redis.Redis
) -> None:
    assert ask(api, caller).status == 404
    assert api.get("/readyz").status == 200
    client.flushall()
    answer = ask(api, caller)
    assert_unavailable(answer)
    assert "not complete at the moment" in answer.json["message"]
    assert "rebuil" not in answer.json["message"], "nobody may be doing it"
    assert api.get("/readyz").status == 503
    records.organization(caller.organization_id)
    records.key(caller.key, caller.organization_id)
    assert_back_within_a_second(api, caller)


@pytest.mark.parametrize(
    ("key_back", "access_back"),
    [
        pytest.param(False, False, id="nothing is back"),
        pytest.param(True, False, id="the key is back"),
        pytest.param(True, True, id="access is back"),
    ],
)
def test_the_first_response_after_redis_was_emptied_is_503(
    api: ApiServer, caller: Caller, client: redis.Redis, records: Records, key_back: bool, access_back: bool
) -> None:
    """It is not 401, 403 or 404: the server says in the same reply that it is not complete."""
    for _ in range(5):
        assert ask(api, caller).status == 404
        client.flushall()
        if key_back:
            control.write(client, filled=())  # a projector has begun to fill it
            records.key(caller.key, caller.organization_id)
        if access_back:
            records.organization(caller.organization_id)
        assert_unavailable(ask(api, caller))
        records.key(caller.key, caller.organization_id)
        control.write(client)
        records.organization(caller.organization_id)
        assert_back_within_a_second(api, caller)


def test_a_generation_that_is_not_a_number(api: ApiServer, caller: Caller, client: redis.Redis) -> None:
    client.hset(names.CONTROL, "live", "x")
    assert_unavailable(api.get("/readyz"))
    assert_unavailable(ask(api, caller))


def test_served_while_only_the_limiter_cannot_write(
    api: ApiServer, records: Records, caller: Caller, client: redis.Redis
) -> None:
    lead_id = records.lead(caller.organization_id, {"id": "x"})
    assert ask(api, caller).status == 404
    client.config_set("maxmemory", "1")
    answer = api.get(LEADS + lead_id, key=caller.key)
    assert (answer.status, answer.json) == (200, {"id": "x"})


def test_while_the_first_projection_is_filled(server: RedisServer, client: redis.Redis, records: Records) -> None:
    """503 until a projector has noted that everything is there: a record may not have been projected yet."""
    caller = records.caller()
    control.write(client, filled=())
    with running_api(ApiSettings(redis_url=server.url), ready=False) as api:
        wait_until(lambda: api.get("/healthz").status == 200, "the API listens")
        assert_unavailable(ask(api, caller))
        assert api.get("/readyz").status == 503
        control.write(client)
        assert_back_within_a_second(api, caller)


def test_an_api_and_a_redis_that_start_empty_together(server: RedisServer, client: redis.Redis) -> None:
    """A rebooted machine without persistence must not tell every tool that its key is wrong."""
    client.flushall()
    with running_api(ApiSettings(redis_url=server.url), ready=False) as api:
        wait_until(lambda: api.get("/healthz").status == 200, "the API listens")
        for _ in range(3):
            assert_unavailable(ask(api, Caller()))
        assert api.get("/readyz").status == 503


def test_a_redis_of_another_layout(api: ApiServer, caller: Caller, client: redis.Redis) -> None:
    assert ask(api, caller).status == 404
    client.hset(names.CONTROL, "layout", "999")
    assert_unavailable(ask(api, caller))
    assert api.get("/readyz").status == 503


def test_a_demoted_primary_is_left(client: redis.Redis, api: ApiServer, caller: Caller) -> None:
    """The data of a replica may be long out of date. The connection ends with the first refused charge, so that the
    present master is looked for; the next request waits for that."""

    def connected() -> set[str]:
        return {each["id"] for each in client.client_list() if each["name"] == "leadview-api"}

    assert ask(api, caller).status == 404
    before = connected()
    client.replicaof("127.0.0.1", "1")
    client.config_set("replica-serve-stale-data", "yes")
    assert_unavailable(ask(api, caller))
    client.replicaof("NO", "ONE")
    assert_back_within_a_second(api, caller)
    assert not connected() & before


def test_a_connection_that_is_reset_between_two_requests(server: RedisServer, records: Records) -> None:
    """The next request is served: it waits until the API is connected again."""
    caller = records.caller()
    with faulty_proxy(server.port) as proxy, running_api(patient(f"redis://127.0.0.1:{proxy.port}/0")) as api:
        assert ask(api, caller).status == 404
        for _ in range(10):
            proxy.reset_all()
            assert ask(api, caller).status == 404


def test_requests_that_fail_because_of_redis_are_counted(server: RedisServer, records: Records, tmp_path: Path) -> None:
    caller, metrics = records.caller(), ApiServer(free_port())

    def counted() -> float:
        return next(
            float(line.split()[-1])
            for line in metrics.get("/metrics").body.decode().splitlines()
            if line.startswith("leadview_api_redis_errors")
        )

    settings = {"redis_url": server.url, "metrics_port": metrics.port}
    with running_api_process(tmp_path / "log", **settings) as (_, api):
        assert ask(api, caller).status == 404
        wait_until(lambda: metrics.answers("/metrics"), "the metrics are there")
        assert counted() == 0
        server.kill()
        for _ in range(3):
            assert_unavailable(ask(api, caller))
        wait_until(lambda: counted() == 3, "each of them is counted")
