"""The troubles of the table. Each one is made in an installation in which all is well, and repaired at the end of the
block as the table advises.
"""

import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from functools import partial as bind
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlsplit

import orjson
import psutil
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from devstack.apache_kafka import ApacheKafka
from devstack.fault_proxy import faulty_proxy
from devstack.programs import PROJECTOR
from devstack.redis_cluster import RedisCluster
from devstack.redis_sentinel import RedisSentinel
from devstack.redis_server import RedisServer
from projector.upkeep.comparison import SUBJECTS
from schemas import names, resources
from schemas.control import number_of
from tests.harness import certificates, crm
from tests.harness.certificates import Certificate
from tests.harness.crm import Message
from tests.harness.metrics_port import ask
from tests.harness.programs import asleep
from tests.harness.projectors import FAILING, NEXT_MAPPING
from tests.harness.services import Kafka
from tests.harness.topics import Topics
from tests.harness.waiting import PATIENCE_SECONDS, wait_until
from tests.troubles.installation import API_USER, PROJECTOR_USER, WELL, Installation

_TOO_LATE_MS = 6_000
"""A shorter pause of all projectors is not noticed (`projector/upkeep/complete.py`)."""
_ACL_FIELDS = ("restype", "name", "resource_pattern_type", "principal", "host", "operation", "permission_type")
Chosen = Callable[[Installation], Sequence[RedisServer]]
"""Some of the servers of Redis."""


# Servers, users and settings.


def none_of_them(_: Installation) -> Sequence[RedisServer]:
    return ()


def all_of_them(here: Installation) -> Sequence[RedisServer]:
    if isinstance(here.redis, RedisSentinel):
        return here.redis.replica, here.redis.master
    return (here.redis,) if isinstance(here.redis, RedisServer) else here.redis.primaries


def ours(here: Installation) -> Sequence[RedisServer]:
    """Returns the shard that holds our organization."""
    assert isinstance(here.redis, RedisCluster)
    return (here.redis.owner(names.tag_slot(names.tag(names.organization(crm.ORGANIZATION)))),)


def paused(chosen: Chosen, here: Installation) -> Iterator[None]:
    with asleep(*chosen(here)):
        yield


def without_projectors(emptied: Chosen, here: Installation) -> Iterator[None]:
    """No projector runs, and nobody fills the servers that were emptied."""
    here.kill_projectors()
    for server in emptied(here):
        with server.client() as client:
            client.flushall()
    yield
    here.start_projectors()


def configured(option: str, value: object, usual: object, here: Installation) -> Iterator[None]:
    here.leadview.redis.config_set(option, value)
    yield
    here.leadview.redis.config_set(option, usual)


def redis_is_full(here: Installation) -> Iterator[None]:
    yield from configured("maxmemory", here.leadview.redis.info("memory")["used_memory"] // 2, 0, here)


def without_right(user: str, command: str, here: Installation) -> Iterator[None]:
    here.leadview.redis.execute_command("ACL", "SETUSER", user, f"-{command}")
    here.publish_again()
    yield
    here.leadview.redis.execute_command("ACL", "SETUSER", user, f"+{command}")


def with_another_password(user: str, here: Installation) -> Iterator[None]:
    """Somebody has changed it, and the program has the former one. Its connections are closed."""
    admin = here.leadview.redis
    admin.execute_command("ACL", "SETUSER", user, "resetpass", ">another")
    admin.execute_command("CLIENT", "KILL", "USER", user)
    here.publish_again()
    yield
    here.user(user)


def redis_has_another_certificate(create: Callable[[Path], Certificate], here: Installation) -> Iterator[None]:
    """Redis is behind TLS, and somebody replaces its certificate while both programs run. They trust the former one."""
    with TemporaryDirectory() as folder, ExitStack() as stack:
        first, second = (Path(folder, name) for name in ("first", "second"))
        for directory in (first, second):
            directory.mkdir()
        trusted, replaced = certificates.create(first), create(second)
        tls = SSLContext(PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(*trusted)
        proxy = stack.enter_context(faulty_proxy(urlsplit(here.leadview.server.url).port or 0, tls))
        ca = Path(folder, "ca.pem")
        ca.write_bytes(trusted.certificate.read_bytes())
        if create is certificates.create_expired:  # which is refused for its date alone
            ca.write_bytes(trusted.certificate.read_bytes() + replaced.certificate.read_bytes())
        encrypted: dict[str, Any] = {
            "redis_url": f"rediss://127.0.0.1:{proxy.port}/0",
            "redis_tls_ca_file": ca,
        }
        here.api_process.stop()
        here.start_api(**encrypted)
        for _ in all_have(encrypted, here):
            here.wait_for(WELL)
            tls.load_cert_chain(*replaced)
            proxy.reset_all()
            here.publish_again()
            yield
            assert "certificate verify failed" in here.leadview.run("status", **encrypted)
            if create is certificates.create:
                ca.write_bytes(replaced.certificate.read_bytes())
            else:
                tls.load_cert_chain(*trusted)
            here.wait_for(WELL)
        here.api_process.stop()
        here.start_api()


def kafkas_password_is_changed(here: Installation) -> Iterator[None]:
    """Somebody changes it in Kafka while the projectors run. They continue as soon as theirs is right."""
    here.set_kafka_password()
    settings: dict[str, Any] = {**here.signed_in, "kafka_sasl_mechanism": "SCRAM-SHA-512"}
    for _ in all_have(settings, here):
        here.wait_for(WELL)
        here.set_kafka_password("another")
        here.publish_again()
        yield
        assert "Kafka refuses the user 'projector' or its password" in here.leadview.run("status", **settings)
        here.set_kafka_password()
        here.leadview.wait_until_current()
        here.wait_for(WELL)


def a_failover(here: Installation) -> Iterator[None]:
    assert isinstance(here.redis, RedisSentinel)
    here.redis.fail_over()
    yield
    here.redis.join()


def one_shard_was_lost(here: Installation) -> Iterator[None]:
    [shard], cluster = ours(here), here.redis
    assert isinstance(cluster, RedisCluster)
    here.kill_projectors()
    number = cluster.primaries.index(shard)
    cluster.lose(number, next(other for other in cluster.primaries if other is not shard))
    yield
    here.start_projectors()
    here.wait_for(WELL)
    cluster.replace(number)


def kafka_is_away(here: Installation) -> Iterator[None]:
    here.kafka.pause(0)
    try:
        yield
    finally:
        here.kafka.resume(0)


def one_broker_is_away(here: Installation) -> Iterator[None]:
    here.kafka.kill(2)
    here.publish_again()
    here.leadview.wait_until_current()
    yield
    here.kafka.restart(2)


# Topics and what is in them.


def a_topic_is_missing(here: Installation) -> Iterator[None]:
    topics = here.leadview.topics
    topic = topics.name(resources.CONTACT)
    topics.admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)
    yield
    topics.create(partitions=2)
    _published_and_verified(here)


def a_topic_is_not_compacted(here: Installation) -> Iterator[None]:
    topics = here.leadview.topics
    topics.alter("topic", topics.name(resources.LEAD), {"cleanup.policy": "delete"})
    yield
    topics.alter("topic", topics.name(resources.LEAD), {"cleanup.policy": "compact"})


def a_topic_was_created_again(here: Installation) -> Iterator[None]:
    here.leadview.topics.recreate(resources.CONTACT, 2)
    yield
    _published_and_verified(here)


def deletions_were_removed(here: Installation) -> Iterator[None]:
    """No projector ran for longer than Kafka keeps deletions."""
    topics = here.leadview.topics
    name = topics.name(resources.CONTACT)
    topics.alter("topic", name, {"delete.retention.ms": "100"})
    here.kill_projectors()

    def is_too_late() -> bool:
        seconds, microseconds = here.leadview.redis.time()
        complete = int(here.leadview.redis.hget(names.COMPLETE, name))
        return bool(seconds * 1000 + microseconds / 1000 - complete > _TOO_LATE_MS)

    wait_until(is_too_late, "deletions may have been removed")
    with _no_comparison(here):
        here.start_projectors()
        yield
    topics.alter("topic", name, {"delete.retention.ms": "86400000"})


def records_were_removed(here: Installation) -> Iterator[None]:
    """Retention removed a new state of an API key while no projector ran."""
    topics = here.leadview.topics
    name = topics.name(resources.API_KEY)
    here.kill_projectors()
    [unread] = here.leadview.publish(crm.api_key(here.version()))
    topics.alter("topic", name, {"cleanup.policy": "delete"})
    topics.delete_records([TopicPartition(name, unread.partition, unread.next_offset)])
    topics.alter("topic", name, {"cleanup.policy": "compact"})
    here.start_projectors()
    yield
    here.leadview.publish(crm.api_key(here.version()))
    here.leadview.wait_until_current()
    here.succeed("verify", "--access")


def partitions_were_added(here: Installation) -> Iterator[None]:
    with _no_comparison(here):  # which ends it if nothing live is left in a former partition
        here.leadview.topics.add_partitions(resources.CONTACT, 3)
        yield
    here.succeed("verify")


def another_cluster_answers(here: Installation) -> Iterator[None]:
    """The projectors have the address of one with topics of the same names."""
    with TemporaryDirectory() as folder, ApacheKafka.start(Path(folder)) as other:
        kafka = Kafka("apache", other.bootstrap_servers, other.create_topic)
        Topics(kafka, here.leadview.prefix).create(partitions=2)
        yield from all_have({"kafka_bootstrap_servers": other.bootstrap_servers}, here)


@contextmanager
def _no_comparison(here: Installation) -> Iterator[None]:
    """Projectors end no break by themselves until the block ends: somebody else holds the locks of the comparison."""
    locks = [names.comparison_lock(subject) for subject in SUBJECTS]
    for lock in locks:
        here.leadview.redis.set(lock, "a test")
    yield
    here.leadview.redis.delete(*locks)


def a_transaction_is_open(here: Installation) -> Iterator[None]:
    """Nobody else publishes to this partition meanwhile, and nothing in it is visible before the transaction ends."""
    producer = here.leadview.topics.begin_transaction(crm.lead(1, id=crm.uuid(0xBEEF)))
    yield
    producer.abort_transaction()


def _published_and_verified(here: Installation) -> None:
    """What the advice says: publish all entities again, then verify what is served."""
    here.publish()
    here.leadview.wait_until_current()
    here.succeed("verify")


def a_line_is_halted(here: Installation) -> Iterator[None]:
    here.leadview.publish(*(crm.lead(here.version(), stage="WRONG") for _ in range(9)))
    yield
    # The command to paste is the end of what `status` says.
    [said] = _status(here)["problems"]
    _, _, command = said.partition("python -m projector ")
    here.succeed(*shlex.split(command))
    here.leadview.wait_until_current()
    here.succeed("dead-letters", "drop", "--all")


def a_line_is_failing(here: Installation) -> Iterator[None]:
    """A defect of the program, which the former version does not have."""
    for _ in all_have({}, here, FAILING):
        here.leadview.publish(*[crm.lead(here.version(), id=crm.OTHER_LEAD)] * 2)
        yield


def bad_record(message: Message, here: Installation) -> Iterator[None]:
    here.leadview.publish(message)
    yield
    here.succeed("dead-letters", "drop", "--all")


def older_version(here: Installation) -> Iterator[None]:
    older, newer = here.version(), here.version()
    here.leadview.publish(crm.lead(newer), crm.lead(older))
    yield
    here.leadview.publish(crm.lead(here.version()))
    here.leadview.wait_until_current()


def clock_is_off(days: int, here: Installation) -> Iterator[None]:
    """The clock of a producer is that of its events. Kafka refuses records of more than an hour ahead."""
    now = datetime.now(UTC) + timedelta(days=days)
    seconds = (min(now, datetime.now(UTC)) - datetime(2026, 1, 1, tzinfo=UTC)).total_seconds()
    here.leadview.publish(crm.contact(here.version(), seconds=seconds, updated_at=now.isoformat()))
    here.leadview.wait_until_current()
    yield


# Programs.


def one_projector_is_dead(here: Installation) -> Iterator[None]:
    here.projectors.popitem()[1].kill()
    yield
    here.start_projectors(1)


def one_projector_stands_still(here: Installation) -> Iterator[None]:
    port, child = next(iter(here.projectors.items()))
    child.pause()
    yield
    here.projectors.pop(port).kill()
    here.start_projectors(1)


def a_projector_wakes_up(here: Installation) -> Iterator[None]:
    """While it stands still, nobody is told: the other one has taken its place."""
    port, child = next(iter(here.projectors.items()))
    child.pause()
    here.start_projectors(1)
    here.wait_for(WELL)
    here.publish_again()
    child.resume()
    here.publish_again()
    here.leadview.wait_until_current()
    yield
    here.succeed("verify")
    here.projectors.pop(port).stop()


def all_projectors_stand_still(here: Installation) -> Iterator[None]:
    for projector in here.projectors.values():
        projector.pause()
    yield
    here.kill_projectors()
    here.start_projectors()


def one_has(settings: dict[str, Any], here: Installation) -> Iterator[None]:
    """A third projector has these settings. Its own health does not count here."""
    child = here.leadview.start("run", **settings)
    yield
    child.stop()


def a_stranger_in_the_group(here: Installation) -> Iterator[None]:
    """Somebody has taken the group of the installation for any name."""
    with here.leadview.topics.consumed(resources.LEAD, here.leadview.group):
        yield


def all_have(settings: dict[str, Any], here: Installation, command: Sequence[str] = PROJECTOR) -> Iterator[None]:
    """Two projectors with other settings or another program run in place of those that are right."""
    here.kill_projectors()
    here.start_projectors(2, command, **settings)
    yield
    here.kill_projectors()
    here.start_projectors()


def one_projector_may_not_see_its_topics(here: Installation) -> Iterator[None]:
    settings: dict[str, Any] = {"topic_prefix": "crn.", **here.signed_in}
    yield from one_has(settings, here)
    # A command that has it says so as well.
    assert "LEADVIEW_TOPIC_PREFIX" in here.leadview.run("status", **settings)


def all_projectors_may_not_see_their_topics(here: Installation) -> Iterator[None]:
    for _ in all_have({"topic_prefix": "crn.", **here.signed_in}, here):
        yield
        for port in here.projectors:
            [said] = ask(port, "/healthz")[1]["problems"]
            assert "crn.leads" in said
            assert "LEADVIEW_TOPIC_PREFIX" in said


def the_user_may_not_read_leads(here: Installation) -> Iterator[None]:
    """Somebody denies it while the projectors run. They continue as soon as it is allowed."""
    topics = here.leadview.topics
    name = topics.name(resources.LEAD)
    denied = AclBinding(
        ResourceType.TOPIC,
        name,
        ResourcePatternType.LITERAL,
        f"User:{PROJECTOR_USER}",
        "*",
        AclOperation.READ,
        AclPermissionType.DENY,
    )
    for _ in all_have({**here.signed_in}, here):
        here.wait_for(WELL)
        topics.admin.create_acls([denied])[denied].result(PATIENCE_SECONDS)
        here.publish_again()
        yield
        [said] = _status(here)["problems"]
        assert f"the user {PROJECTOR_USER} the right Read on topic {name}" in said
        assert f"--allow-principal User:{PROJECTOR_USER} --operation Read --topic {name}" in said
        removed = AclBindingFilter(*[getattr(denied, field) for field in _ACL_FIELDS])
        topics.admin.delete_acls([removed])[removed].result(PATIENCE_SECONDS)
        here.leadview.wait_until_current()
        here.wait_for(WELL)


def an_older_program(here: Installation) -> Iterator[None]:
    """The newer program has filled a generation, and only the older one runs: it stands by."""
    newer = here.leadview.start("run", command=NEXT_MAPPING)
    here.succeed("rebuild", "--max-latency", "0", command=NEXT_MAPPING)
    newer.stop()
    yield
    _drop_the_next(here)


def a_rebuild_that_nobody_continues(here: Installation) -> Iterator[None]:
    """The command cannot write documents, so that it is not done before it is killed."""
    user = here.user("rebuild")
    here.leadview.redis.execute_command("ACL", "SETUSER", "rebuild", "-mset")
    rebuilding = here.leadview.start("rebuild", "--max-latency", "0", **user)

    def is_begun() -> bool:
        roles = [writer["role"] for writer in _status(here)["writers"]]
        return bool(here.leadview.state().next) and "rebuild" in roles

    wait_until(is_begun, "a generation is begun")
    rebuilding.kill()
    yield
    _drop_the_next(here)


def _status(here: Installation) -> dict[str, Any]:
    return dict(orjson.loads(here.leadview.run("status", "--json").stdout))


def _drop_the_next(here: Installation) -> None:
    generation = here.leadview.state().next
    assert generation
    here.succeed("drop", str(number_of(generation)))


def no_api_worker(here: Installation) -> Iterator[None]:
    here.api_process.kill()
    yield
    here.start_api()


def all_api_workers_hang(here: Installation) -> Iterator[None]:
    hanging = [psutil.Process(here.api_process.pid), *psutil.Process(here.api_process.pid).children()]
    for process in hanging:
        process.suspend()
    yield
    for process in hanging:
        process.kill()
    here.start_api()


TROUBLES: dict[str, Callable[[Installation], Iterator[None]]] = {
    "no projector": bind(without_projectors, none_of_them),
    "one of two projectors is dead": one_projector_is_dead,
    "one of two projectors stands still": one_projector_stands_still,
    "a projector that stood still wakes up after it was replaced": a_projector_wakes_up,
    "all projectors stand still": all_projectors_stand_still,
    "Kafka is away": kafka_is_away,
    "a topic is missing": a_topic_is_missing,
    "a topic is not compacted": a_topic_is_not_compacted,
    "a topic was deleted and created again": a_topic_was_created_again,
    "deletions were removed before they were read": deletions_were_removed,
    "records were removed before they were read": records_were_removed,
    "partitions were added to a topic": partitions_were_added,
    "another Kafka cluster answers": another_cluster_answers,
    "a transaction is open": a_transaction_is_open,
    "one projector has another prefix": bind(one_has, {"topic_prefix": "crn."}),
    "all projectors have another prefix": bind(all_have, {"topic_prefix": "crn."}),
    "one projector has another prefix, and may not see such topics": one_projector_may_not_see_its_topics,
    "all projectors have another prefix, and may not see such topics": all_projectors_may_not_see_their_topics,
    "one projector has another group": bind(one_has, {"group_id": "another"}),
    "a stranger is in the consumer group": a_stranger_in_the_group,
    "Redis is away": bind(paused, all_of_them),
    "Redis was emptied, and no projector fills it": bind(without_projectors, all_of_them),
    "Redis evicts": bind(configured, "maxmemory-policy", "allkeys-lru", "noeviction"),
    "Redis is full": redis_is_full,
    # As it does if it has too few replicas.
    "Redis refuses writes": bind(configured, "min-replicas-to-write", 1, 0),
    "the API's user lacks a right": bind(without_right, API_USER, "mget"),
    "the API's password is changed": bind(with_another_password, API_USER),
    "the projectors' password is changed": bind(with_another_password, PROJECTOR_USER),
    "Redis has a certificate of another CA": bind(redis_has_another_certificate, certificates.create),
    "the certificate of Redis has expired": bind(redis_has_another_certificate, certificates.create_expired),
    "the projectors' password is changed in Kafka": kafkas_password_is_changed,
    "the projectors' user lacks a right": bind(without_right, PROJECTOR_USER, "mset"),
    "the projectors' user lacks a right in Kafka": the_user_may_not_read_leads,
    "a replica took the place of its master": a_failover,
    "master and replica are away": bind(paused, all_of_them),
    "one shard is away": bind(paused, ours),
    "one shard was emptied, and no projector fills it": bind(without_projectors, ours),
    "one shard is lost, its slots were given away, and no projector fills them": one_shard_was_lost,
    "one broker of three is away": one_broker_is_away,
    "a line is halted": a_line_is_halted,
    "a line is failing": a_line_is_failing,
    "a bad record": bind(bad_record, crm.lead(200, stage="WRONG")),
    "an older version is published behind a newer one": older_version,
    "a bad record of an API key": bind(bad_record, crm.api_key(2, status="revoked", created_at=None)),
    "a producer's clock is a day ahead": bind(clock_is_off, 1),
    "a producer's clock is a day behind": bind(clock_is_off, -1),
    "an older program": an_older_program,
    "a rebuild that nobody continues": a_rebuild_that_nobody_continues,
    "no API worker": no_api_worker,
    "all API workers hang": all_api_workers_hang,
}
"""By their names in the table. Each breaks something, and repairs it after it has yielded."""
