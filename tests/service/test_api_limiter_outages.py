"""The limiter when Redis cannot write, and when Redis has lost what was written."""

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
import redis

from api import worker
from api.limits import LocalLimiter
from devstack.fault_proxy import Faults, faulty_proxy
from devstack.redis_server import RedisServer
from tests.harness.api_server import LEADS, ApiServer, Response, patient, running_api
from tests.harness.records import Caller, Records
from tests.harness.waiting import wait_until

Change = Callable[[redis.Redis], object]
NO_RECORD = LEADS + str(uuid4())
SECOND = 1_000_000_000


@pytest.fixture
def client(own_redis: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(own_redis.url) as client:
        yield client


class Clock:
    """A worker's own clock, in nanoseconds, which stands until it is set."""

    def __init__(self) -> None:
        self.now = time.monotonic_ns()

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """However long the requests of a test take, the limits of the API's worker see none of it."""
    clock = Clock()
    monkeypatch.setattr(worker, "LocalLimiter", partial(LocalLimiter, clock=clock))
    return clock


@pytest.fixture
def api(own_redis: RedisServer, clock: Clock) -> Iterator[ApiServer]:
    with running_api(patient(own_redis.url)) as api:
        yield api


def fail_to_save(client: redis.Redis) -> None:
    """Redis cannot save, because its directory is gone."""
    shutil.rmtree(str(client.config_get("dir")["dir"]))
    client.config_set("save", "3600 1")  # a failed save blocks writes only if saving is enabled
    client.bgsave()
    wait_until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err", "saving fails")


def save_again(client: redis.Redis) -> None:
    client.config_set("save", "")


def want_replicas(client: redis.Redis) -> None:
    client.config_set("min-replicas-to-write", "1")


@pytest.mark.parametrize(
    ("broken", "repaired"),
    [
        pytest.param(
            lambda client: client.config_set("maxmemory", "1"),
            lambda client: client.config_set("maxmemory", "0"),
            id="OOM",
        ),
        pytest.param(
            lambda client: client.acl_setuser("default", enabled=True, commands=["-set"]),
            lambda client: client.acl_setuser("default", enabled=True, commands=["+set"]),
            id="NOPERM",
        ),
        pytest.param(fail_to_save, save_again, id="MISCONF"),
        pytest.param(
            want_replicas,
            lambda client: client.config_set("min-replicas-to-write", "0"),
            id="NOREPLICAS",
        ),
    ],
)
def test_the_local_limiter_decides_when_charges_cannot_be_written(
    api: ApiServer, client: redis.Redis, clock: Clock, broken: Change, repaired: Change
) -> None:
    caller = Records(client).caller(key_limit=(3, 30_000), organization_limit=(100, 30_000))
    broken(client)
    answers = [api.get(NO_RECORD, key=caller.key) for _ in range(4)]
    assert [answer.status for answer in answers] == [404, 404, 404, 429]
    assert [answer.headers["x-ratelimit-remaining"] for answer in answers] == ["2", "1", "0", "0"]
    assert_true(answers[-1])
    if broken is not want_replicas or int(client.info("server")["redis_version"].split(".")[0]) >= 7:
        assert not client.keys("lv3{*}q*")  # Redis 6 lets scripts write without replicas
    clock.now += 10_000 * SECOND - 1000
    assert api.get(NO_RECORD, key=caller.key).status == 429
    clock.now += 1000  # as it says: waiting so long is enough
    assert api.get(NO_RECORD, key=caller.key).status == 404
    repaired(client)
    charged = [api.get(NO_RECORD, key=caller.key).headers["x-ratelimit-remaining"] for _ in range(2)]
    assert charged[-1] in "01"  # charged by Redis again


def assert_true(answer: Response) -> None:
    assert (answer.error, answer.json["violated_policies"]) == ("rate_limit_exceeded", ["key"])
    assert answer.json["retry_after"] == int(answer.headers["retry-after"]) == 10_000
    assert answer.headers["ratelimit-policy"] == '"key";q=3;w=30000, "organization";q=100;w=30000'
    assert answer.headers["ratelimit"].startswith(
        f'"key";r=0;t={answer.headers["retry-after"]}, "organization";r=97;t='
    )


@pytest.mark.parametrize(
    ("lost", "granted_again"),
    [pytest.param(False, 0, id="an up-to-date replica"), pytest.param(True, 10, id="a replica that lost the tail")],
)
def test_a_failover_grants_at_most_one_more_window(tmp_path: Path, lost: bool, granted_again: int) -> None:
    with ExitStack() as stack:
        primary, replica = (
            stack.enter_context(RedisServer.start(tmp_path / name, options=("--repl-diskless-sync-delay", "0")))
            for name in ("first", "second")
        )
        replication = stack.enter_context(faulty_proxy(primary.port))
        way_in = stack.enter_context(faulty_proxy(primary.port))
        client, follower = (stack.enter_context(redis.Redis.from_url(each.url)) for each in (primary, replica))
        follower.replicaof("127.0.0.1", str(replication.port))
        caller = Records(client).caller(key_limit=(10, 3600), organization_limit=(1000, 3600))
        wait_until(lambda: follower.exists(caller.name), "the replica follows")
        api = stack.enter_context(running_api(patient(f"redis://127.0.0.1:{way_in.port}/0")))

        replication.faults = Faults(stalled=lost)
        assert burst(api, caller, 20) == {404: 10, 429: 10}
        if not lost:
            written = client.info("replication")["master_repl_offset"]
            wait_until(
                lambda: follower.info("replication")["slave_repl_offset"] >= written, "the charges are on the replica"
            )
            assert follower.keys("*q*")
        primary.kill()
        replication.reset_all()
        follower.replicaof("NO", "ONE")
        way_in.server_port = replica.port
        wait_until(lambda: api.get("/readyz").status == 200, "the API is back")
        assert burst(api, caller, 20) == Counter({404: granted_again, 429: 20 - granted_again})
        assert burst(api, caller, 20) == {429: 20}


def burst(api: ApiServer, caller: Caller, requests: int) -> Counter[int]:
    """Returns the statuses of this many requests, which are sent eight at a time."""
    with ThreadPoolExecutor(8) as pool:
        return Counter(pool.map(lambda _: api.get(NO_RECORD, key=caller.key).status, range(requests)))
