"""The users of deploy/redis-users.conf.example: enough for both processes, and not more."""

import re
from pathlib import Path

import pytest
import redis
from redis.exceptions import NoPermissionError, ResponseError

from devstack.redis_server import RedisServer
from schemas import names, resources
from schemas.api_keys import key_hash, mint
from tests.harness import crm
from tests.harness.api_server import LEADS, patient, running_api
from tests.harness.generations import generation
from tests.harness.leadview import Leadview
from tests.harness.services import REDIS_USERS, Kafka
from tests.harness.waiting import PATIENCE_SECONDS, eventually

OWNER = names.organization(crm.ORGANIZATION)
LEAD = names.document(resources.LEAD, OWNER, generation(1), crm.LEAD)


def password(user: str) -> str:
    found = re.search(rf"^user {user} on >(\S+)", REDIS_USERS.read_text(), re.MULTILINE)
    assert found
    return found[1]


def access(user: str) -> dict[str, str]:
    return {"redis_username": user, "redis_password": password(user)}


@pytest.mark.apache
async def test_the_example_is_enough(
    kafka: Kafka, topic_prefix: str, users_redis: RedisServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("api.usage._LAST_SECONDS", PATIENCE_SECONDS)
    key = mint(crm.ORGANIZATION)
    with Leadview(kafka, topic_prefix, users_redis, tmp_path) as leadview:
        leadview.topics.create(partitions=1)
        limits = {"key": {"quota": 100, "window_seconds": 360_000}}  # nothing comes back while the test runs
        leadview.publish(
            crm.organization(1, rate_limits=limits), crm.api_key(1, hash=key_hash(key)), crm.contact(1), crm.lead(1)
        )
        projector = access("leadview-projector")
        leadview.start("run", **projector)
        await leadview.settled()
        leadview.publish(crm.contact(2, first_name="Grace"), crm.lead(2, stage="WRONG"))
        await leadview.settled()
        await eventually(leadview.is_served, "it is served")
        leadview.run("status", **projector).ends(1, "because its newest record is bad")
        for command in (["verify"], ["rebuild", "--promote", "--max-latency", "0"], ["drop"]):
            leadview.run(*command, **projector).ends(0)
        with running_api(patient(users_redis.url, **access("leadview-api")), ready=False) as api:
            await eventually(api.is_ready, "the API is ready")
            answer = api.get(LEADS + crm.LEAD, key=key)
            assert (answer.status, answer.headers["x-ratelimit-remaining"]) == (200, "99")
            assert api.get(LEADS + crm.LEAD, key=key).headers["x-ratelimit-remaining"] == "98"
            await eventually(lambda: leadview.redis.exists(names.LATENCY), "the API reports its latency")
        assert leadview.redis.hget(names.usage(OWNER), key_hash(key)).startswith(b"2 0 "), "the API has counted its use"
        assert leadview.redis.acl_log() == []


FORBIDDEN = {
    "overwrite a document": ("SET", LEAD, "x"),
    "delete a document": ("DEL", LEAD),
    "give access": ("SET", OWNER, "x"),
    "serve another generation": ("HSET", names.CONTROL, "live", "2"),
    "write elsewhere": ("SET", "another", "x"),
    "read elsewhere": ("GET", "another"),
    "list records": ("HGETALL", names.DEAD_LETTERS),
    "list keys": ("SCAN", "0"),
    "end a script of others": ("SCRIPT", "KILL"),
    "load a function": ("FUNCTION", "LOAD", "#!lua name=x\n"),
    "look for keys": ("KEYS", "*"),
    "delete everything": ("FLUSHALL",),
    "read the configuration": ("CONFIG", "GET", "requirepass"),
    "run a text": ("EVAL", "return 1", 0),
}


REFUSED = r"NOPERM|can't access|ACL failure"
"""Versions of Redis and Valkey say it in different words."""


def test_user_of_the_api_may_not_write(users_redis: RedisServer) -> None:
    """Nor in a script."""
    with redis.Redis(port=users_redis.port, username="leadview-api", password=password("leadview-api")) as client:
        for what, command in FORBIDDEN.items():
            with pytest.raises(NoPermissionError):
                print(what, client.execute_command(*command))  # noqa: T201 - for the report
        sha = client.script_load("return redis.call('SET', KEYS[1], 'x')")
        with pytest.raises(ResponseError, match=REFUSED):
            client.evalsha(sha, 1, LEAD)
        assert client.evalsha(sha, 1, names.organization_limit(OWNER)) == b"OK"
        assert client.get(LEAD) is None
        assert client.set(names.organization_limit(OWNER), "1", px=1000)
