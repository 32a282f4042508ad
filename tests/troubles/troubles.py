"""The troubles of the table. Each one is made in an installation in which all is well, and repaired at the end of the
block as the table advises.
"""

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import psutil
import redis
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from devstack.programs import PROJECTOR
from devstack.redis_cluster import RedisCluster
from devstack.redis_sentinel import RedisSentinel
from devstack.redis_server import RedisServer
from schemas import names, resources
from schemas.api_keys import key_hash
from schemas.control import number_of
from tests.harness import crm
from tests.harness.crm import Message
from tests.harness.metrics_port import ask
from tests.harness.projectors import FAILING, NEXT_MAPPING
from tests.harness.waiting import PATIENCE_SECONDS, wait_until
from tests.troubles.installation import API_USER, KEY, PROJECTOR_USER, WELL, Installation

Make = Callable[[Installation], AbstractContextManager[None]]
TROUBLES: dict[str, Make] = {}
_DAY = timedelta(days=1)


def trouble(name: str) -> Callable[[Callable[[Installation], Iterator[None]]], Make]:
    """Adds a trouble of the table."""

    def add(make: Callable[[Installation], Iterator[None]]) -> Make:
        assert name not in TROUBLES
        TROUBLES[name] = contextmanager(make)
        return TROUBLES[name]

    return add


def _server(here: Installation) -> RedisServer:
    assert isinstance(here.redis, RedisServer)
    return here.redis


def _paused(*servers: RedisServer) -> Iterator[None]:
    for server in servers:
        server.pause()
    try:
        yield
    finally:
        for server in servers:
            server.resume()


def _start_two(here: Installation) -> None:
    here.start_projector()
    here.start_projector()


@trouble("no projector")
def no_projector(here: Installation) -> Iterator[None]:
    here.kill_projectors()
    yield
    _start_two(here)


@trouble("one of two projectors is dead")
def one_projector_is_dead(here: Installation) -> Iterator[None]:
    port = next(iter(here.projectors))
    here.projectors.pop(port).kill()
    yield
    here.start_projector()


@trouble("one of two projectors stands still")
def one_projector_stands_still(here: Installation) -> Iterator[None]:
    port, child = next(iter(here.projectors.items()))
    child.pause()
    yield
    here.projectors.pop(port).kill()
    here.start_projector()


@trouble("a projector that stood still wakes up after it was replaced")
def a_projector_wakes_up(here: Installation) -> Iterator[None]:
    """While it stands still, nobody is told: the other one has taken its place."""
    port, child = next(iter(here.projectors.items()))
    child.pause()
    here.start_projector()
    here.wait_for(WELL)
    here.publish_again()
    child.resume()
    here.publish_again()
    here.leadview.wait_until_current()
    yield
    _succeed(here, "verify")
    here.projectors.pop(port).stop()


@trouble("all projectors stand still")
def all_projectors_stand_still(here: Installation) -> Iterator[None]:
    for projector in here.projectors.values():
        projector.pause()
    yield
    here.kill_projectors()
    _start_two(here)


@trouble("Kafka is away")
def kafka_is_away(here: Installation) -> Iterator[None]:
    here.kafka.pause(0)
    try:
        yield
    finally:
        here.kafka.resume(0)


@trouble("a topic is missing")
def a_topic_is_missing(here: Installation) -> Iterator[None]:
    topics = here.leadview.topics
    topic = topics.name(resources.CONTACT)
    topics.admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)
    yield
    topics.create(partitions=2)
    _published_and_verified(here)


@trouble("a topic is not compacted")
def a_topic_is_not_compacted(here: Installation) -> Iterator[None]:
    _set_policy(here, "delete")
    yield
    _set_policy(here, "compact")


def _set_policy(here: Installation, policy: str) -> None:
    topics = here.leadview.topics
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topics.name(resources.LEAD), incremental_configs=[entry])
    topics.admin.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)


@trouble("a topic was deleted and created again")
def a_topic_was_created_again(here: Installation) -> Iterator[None]:
    here.leadview.topics.recreate(resources.CONTACT, 2)
    yield
    _published_and_verified(here)


def _succeed(here: Installation, *words: str, command: Sequence[str] = PROJECTOR) -> None:
    done = here.leadview.run(*words, command=command)
    assert done.status == 0, done.output


def _published_and_verified(here: Installation) -> None:
    """What the advice says: publish all entities again, then verify what is served."""
    here.publish()
    here.leadview.wait_until_current()
    _succeed(here, "verify")


@trouble("one projector has another prefix")
def one_projector_has_another_prefix(here: Installation) -> Iterator[None]:
    yield from _with_another(here, topic_prefix="crn.")


@trouble("all projectors have another prefix")
def all_projectors_have_another_prefix(here: Installation) -> Iterator[None]:
    yield from _all_with_another(here, topic_prefix="crn.")


@trouble("one projector has another prefix, and may not see such topics")
def one_projector_may_not_see_its_topics(here: Installation) -> Iterator[None]:
    yield from _with_another(here, topic_prefix="crn.", **here.signed_in)
    # A command that has it says so as well.
    assert "LEADVIEW_TOPIC_PREFIX" in here.leadview.run("status", topic_prefix="crn.", **here.signed_in)


@trouble("all projectors have another prefix, and may not see such topics")
def all_projectors_may_not_see_their_topics(here: Installation) -> Iterator[None]:
    for _ in _all_with_another(here, topic_prefix="crn.", **here.signed_in):
        yield
        for port in here.projectors:
            [said] = ask(port, "/healthz")[1]["problems"]
            assert "crn.leads" in said
            assert "LEADVIEW_TOPIC_PREFIX" in said


@trouble("one projector has another group")
def one_projector_has_another_group(here: Installation) -> Iterator[None]:
    yield from _with_another(here, group_id=f"{here.leadview.group}-other")


def _with_another(here: Installation, **settings: str) -> Iterator[None]:
    """With a third projector, whose own health does not count here."""
    child = here.leadview.start("run", **settings)
    yield
    child.stop()


def _all_with_another(here: Installation, command: Sequence[str] = PROJECTOR, **settings: object) -> Iterator[None]:
    """With two projectors that have other settings or another program, in place of those that are right."""
    here.kill_projectors()
    for _ in range(2):
        here.start_projector(command, **settings)
    yield
    here.kill_projectors()
    _start_two(here)


@trouble("Redis is away")
def redis_is_away(here: Installation) -> Iterator[None]:
    yield from _paused(_server(here))


@trouble("Redis was emptied, and no projector fills it")
def redis_was_emptied(here: Installation) -> Iterator[None]:
    here.kill_projectors()
    here.leadview.redis.flushall()
    yield
    _start_two(here)


@trouble("Redis evicts")
def redis_evicts(here: Installation) -> Iterator[None]:
    yield from _configured(here, "maxmemory-policy", "allkeys-lru", "noeviction")


@trouble("Redis is full")
def redis_is_full(here: Installation) -> Iterator[None]:
    yield from _configured(here, "maxmemory", here.leadview.redis.info("memory")["used_memory"] // 2, 0)


@trouble("Redis refuses writes")
def redis_refuses_writes(here: Installation) -> Iterator[None]:
    """As it does if it has too few replicas."""
    yield from _configured(here, "min-replicas-to-write", 1, 0)


def _configured(here: Installation, option: str, value: object, usual: object) -> Iterator[None]:
    here.leadview.redis.config_set(option, value)
    yield
    here.leadview.redis.config_set(option, usual)


@trouble("the API's user lacks a right")
def a_right_of_the_api(here: Installation) -> Iterator[None]:
    yield from _without(here, API_USER, "mget")


@trouble("the projectors' user lacks a right")
def a_right_of_the_projectors(here: Installation) -> Iterator[None]:
    for _ in _without(here, PROJECTOR_USER, "mset"):
        here.publish_again()
        yield


def _without(here: Installation, user: str, command: str) -> Iterator[None]:
    here.leadview.redis.execute_command("ACL", "SETUSER", user, f"-{command}")
    yield
    here.leadview.redis.execute_command("ACL", "SETUSER", user, f"+{command}")


def _sentinel(here: Installation) -> RedisSentinel:
    assert isinstance(here.redis, RedisSentinel)
    return here.redis


@trouble("a replica took the place of its master")
def a_failover(here: Installation) -> Iterator[None]:
    _sentinel(here).fail_over()
    yield
    _sentinel(here).join()


@trouble("master and replica are away")
def master_and_replica_are_away(here: Installation) -> Iterator[None]:
    yield from _paused(_sentinel(here).replica, _sentinel(here).master)


def _shard(here: Installation) -> RedisServer:
    """Returns the shard that holds our organization."""
    assert isinstance(here.redis, RedisCluster)
    return here.redis.owner(names.tag_slot(names.tag(names.organization(crm.ORGANIZATION))))


@trouble("one shard is away")
def one_shard_is_away(here: Installation) -> Iterator[None]:
    yield from _paused(_shard(here))


@trouble("one shard was emptied, and no projector fills it")
def one_shard_was_emptied(here: Installation) -> Iterator[None]:
    here.kill_projectors()
    with redis.Redis(port=_shard(here).port) as client:
        client.flushall()
    yield
    _start_two(here)


@trouble("one shard is lost, its slots were given away, and no projector fills them")
def one_shard_was_lost(here: Installation) -> Iterator[None]:
    shard, cluster = _shard(here), here.redis
    assert isinstance(cluster, RedisCluster)
    here.kill_projectors()
    number = cluster.primaries.index(shard)
    cluster.lose(number, next(other for other in cluster.primaries if other is not shard))
    yield
    _start_two(here)
    here.wait_for(WELL)
    cluster.replace(number)


@trouble("one broker of three is away")
def one_broker_is_away(here: Installation) -> Iterator[None]:
    here.kafka.kill(2)
    here.publish_again()
    here.leadview.wait_until_current()
    yield
    here.kafka.restart(2)


@trouble("a line is halted")
def a_line_is_halted(here: Installation) -> Iterator[None]:
    here.leadview.publish(*(crm.lead(100 + number, stage="WRONG") for number in range(9)))
    yield
    # The command to paste is the end of what `status` says.
    [said] = _status(here)["problems"]
    _, _, command = said.partition("python -m projector ")
    _succeed(here, *shlex.split(command))
    here.leadview.wait_until_current()
    _forget(here)


@trouble("a line is failing")
def a_line_is_failing(here: Installation) -> Iterator[None]:
    """A defect of the program, which the former version does not have."""
    for _ in _all_with_another(here, FAILING):
        here.leadview.publish(*(crm.lead(300, id=crm.OTHER_LEAD) for _ in range(2)))
        yield


@trouble("a bad record")
def a_bad_record(here: Installation) -> Iterator[None]:
    here.leadview.publish(crm.lead(200, stage="WRONG"))
    yield
    _forget(here)


@trouble("a bad record of an API key")
def a_bad_record_of_a_key(here: Installation) -> Iterator[None]:
    here.leadview.publish(crm.api_key(2, hash=key_hash(KEY), status="revoked", created_at=None))
    yield
    _forget(here)


def _forget(here: Installation) -> None:
    _succeed(here, "dead-letters", "drop", "--all")


@trouble("a producer's clock is a day ahead")
def a_clock_is_ahead(here: Installation) -> Iterator[None]:
    yield from _with_clock(here, _DAY)


@trouble("a producer's clock is a day behind")
def a_clock_is_behind(here: Installation) -> Iterator[None]:
    yield from _with_clock(here, -_DAY)


def _with_clock(here: Installation, off: timedelta) -> Iterator[None]:
    """The clock of a producer is that of its events. Kafka refuses records of more than an hour ahead."""
    now = datetime.now(UTC) + off
    seconds = (min(now, datetime.now(UTC)) - datetime(2026, 1, 1, tzinfo=UTC)).total_seconds()
    message: Message = crm.contact(1000 + off.days, seconds=seconds, updated_at=now.isoformat())
    here.leadview.publish(message)
    here.leadview.wait_until_current()
    yield


@trouble("an older program")
def an_older_program(here: Installation) -> Iterator[None]:
    """The newer program has filled a generation, and only the older one runs: it stands by."""
    newer = here.leadview.start("run", command=NEXT_MAPPING)
    _succeed(here, "rebuild", "--max-latency", "0", command=NEXT_MAPPING)
    newer.stop()
    yield
    _drop_the_next(here)


@trouble("a rebuild that nobody continues")
def a_rebuild_that_nobody_continues(here: Installation) -> Iterator[None]:
    """The command cannot write documents, so that it is not done before it is killed."""
    user = here.user("rebuild")
    here.leadview.redis.execute_command("ACL", "SETUSER", "rebuild", "-mset")
    rebuilding = here.leadview.start("rebuild", "--max-latency", "0", **user)
    wait_until(lambda: here.leadview.state().next and "rebuild" in _roles(here), "a generation is begun")
    rebuilding.kill()
    yield
    _drop_the_next(here)


def _roles(here: Installation) -> list[str]:
    return [writer["role"] for writer in _status(here)["writers"]]


def _status(here: Installation) -> dict[str, Any]:
    return dict(orjson.loads(here.leadview.run("status", "--json").stdout))


def _drop_the_next(here: Installation) -> None:
    generation = here.leadview.state().next
    assert generation
    _succeed(here, "drop", str(number_of(generation)))


@trouble("no API worker")
def no_api_worker(here: Installation) -> Iterator[None]:
    here.api_process.kill()
    yield
    here.start_api()


@trouble("all API workers hang")
def all_api_workers_hang(here: Installation) -> Iterator[None]:
    hanging = [psutil.Process(here.api_process.pid), *psutil.Process(here.api_process.pid).children()]
    for process in hanging:
        process.suspend()
    yield
    for process in hanging:
        process.kill()
    here.start_api()
