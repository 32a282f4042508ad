"""What Kafka has acknowledged behind an open transaction, which nobody can read: no surface says that it is there."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from devstack.apache_kafka import ApacheKafka
from devstack.ports import free_port
from devstack.topics import admin
from operate.explain import records
from projector.record import Partition
from schemas import names, resources
from schemas.control import number_of
from schemas.settings import ProjectorSettings
from tests.harness import crm
from tests.harness.api_server import LEADS, ApiServer, Response
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import ask, metric
from tests.harness.services import Kafka, RedisService
from tests.harness.waiting import PATIENCE_SECONDS, wait_for, wait_until

pytestmark = pytest.mark.apache

IMPORTED = crm.uuid(0xBEEF)
AGE = "leadview_projector_open_transaction_age_seconds"
A_YEAR = 365 * 86_400.0
FUTURE = (datetime.now(UTC) - datetime(2026, 1, 1, tzinfo=UTC)).total_seconds() + 1800
"""Kafka refuses records of more than an hour ahead."""


@pytest.fixture
def leadview(leadview: Leadview) -> Leadview:
    limits = {"quota": 1_000_000, "window_seconds": 1}
    unlimited = crm.organization(rate_limits={"key": limits, "organization": limits})
    leadview.publish(unlimited, crm.api_key(), crm.contact())
    leadview.publish(crm.lead(1), partition=0)
    return leadview


@pytest.fixture
def three_brokers(tmp_path: Path, redis_server: RedisService) -> Iterator[tuple[ApacheKafka, Leadview]]:
    with ApacheKafka.start(tmp_path / "kafka", nodes=3) as brokers:
        kafka = Kafka("apache", brokers.bootstrap_servers, brokers.create_topic)
        with Leadview(kafka, "crm.", redis_server, tmp_path) as leadview:
            leadview.topics.create(partitions=1)
            yield brokers, leadview


@contextmanager
def transaction(
    leadview: Leadview, *, partitions: tuple[int, ...] = (0,), seconds: float | None = None
) -> Iterator[Any]:
    """Yields a producer with a transaction that is open in these partitions of the leads; aborts it at the end."""
    message = crm.lead(1, id=IMPORTED)
    producer = leadview.topics.begin_transaction(message, partition=partitions[0], seconds=seconds)
    for partition in partitions[1:]:
        producer.produce(
            leadview.topics.name(resources.LEAD), key=message.key, value=message.value, partition=partition
        )
    producer.flush()
    yield producer
    producer.abort_transaction()


def get(api: ApiServer, lead: str = crm.LEAD) -> Response:
    return api.get(LEADS + lead, key=crm.KEY)


def as_of(response: Response) -> datetime:
    text = response.headers.get("data-as-of")
    return datetime.fromisoformat(text) if text else datetime.min.replace(tzinfo=UTC)


async def looked_up(leadview: Leadview) -> tuple[records.Published, Any]:
    """Returns what the console finds of the lead in Kafka, and at offset 2."""
    settings = ProjectorSettings(kafka_bootstrap_servers=leadview.kafka.bootstrap_servers, topic_prefix=leadview.prefix)
    published = await records.published(settings, [resources.LEAD], f"{crm.ORGANIZATION}:{crm.LEAD}".encode())
    return published, await records.at(settings, Partition(leadview.topics.name(resources.LEAD), 0), 2)


def is_well(leadview: Leadview) -> bool:
    return leadview.ask("status").status == 0


def test_what_waits_behind_a_transaction_is_claimed_nowhere(leadview: Leadview) -> None:
    port, name = free_port(), leadview.topics.name(resources.LEAD)
    leadview.serve(metrics_port=port)
    with leadview.api() as api:
        wait_until(lambda: get(api).status == 200, "the lead is served")
        with transaction(leadview):
            leadview.publish(crm.lead(2, stage="ACCEPTED"), partition=0)
            published_at = datetime.now(UTC)
            said = leadview.wait_for_verdict(
                f"a transaction is open in {name}:0 since 20", "2 records wait for its end"
            )
            assert "too slow" not in said
            assert f"abort --topic {name} --partition 0 --start-offset 1" in said
            status = leadview.ask("status", "--json").json
            assert (status["kinds"], status["lag"]) == (["open_transaction"], 2)
            leadview.run("doctor").ends(1, f"a transaction is open in {name}:0")
            wait_until(lambda: ask(port, "/healthz")[0] == 503, "the health says it")
            [problem] = ask(port, "/healthz")[1]["problems"]
            assert f"a transaction is open in {name}:0" in problem
            assert metric(port, 'leadview_projector_problems{problem="open_transaction"}') == 1
            assert (metric(port, f'{AGE}{{topic="{name}"}}') or 0) > 5
            leadview.run("verify").ends(1, f"A transaction is open in {name}:0", "no difference in the rest")
            leadview.run("verify", "--access").ends(0, "no difference")
            held = "Kafka holds 1 record of it: 1 with data", "2 more offsets are behind an open transaction"
            leadview.run("show", "lead", crm.ORGANIZATION, crm.LEAD, "--records").ends(0, *held)
            published, at_two = asyncio.run(looked_up(leadview))
            assert (len(published.records), published.whole, published.unread) == (1, False, 2)
            assert at_two == ((0, 1, 3), None)
            assert (get(api).json["stage"] == "ACCEPTED", as_of(get(api)) < published_at) == (False, True)
            wait_until(lambda: leadview.ask("status").status == 1, "it is still said")
        last = wait_for(lambda: get(api), lambda last: as_of(last) >= published_at, "everything is there")
        assert last.json["stage"] == "ACCEPTED"
        assert get(api, IMPORTED).status == 404
    wait_until(lambda: is_well(leadview), "all is well")
    wait_until(lambda: metric(port, f'{AGE}{{topic="{name}"}}') == 0, "no transaction is open")
    leadview.run("verify").ends(0, "no difference")


def test_emptied_redis_is_not_complete_until_the_transaction_has_ended(leadview: Leadview) -> None:
    leadview.serve()
    with leadview.api() as api:
        wait_until(lambda: get(api).status == 200, "the lead is served")
        with transaction(leadview):
            leadview.publish(crm.lead(1, id=crm.OTHER_LEAD), partition=0)
            leadview.redis.flushall()
            positions = {
                at: end
                for at, end in leadview.topics.end_offsets.items()
                if at[0] != leadview.topics.name(resources.LEAD)
            }
            wait_until(lambda: leadview.has_applied(positions), "the other topics are read again")
            leadview.wait_for_verdict("a transaction is open", "not complete")
            assert (get(api).status, get(api, crm.OTHER_LEAD).status, api.is_ready()) == (503, 503, False)
        wait_until(lambda: get(api).status == 200, "it is served again")
        assert (get(api, crm.OTHER_LEAD).status, api.is_ready()) == (200, True)
    wait_until(lambda: is_well(leadview), "all is well")


def test_nothing_is_promoted_unasked_while_a_transaction_is_open(leadview: Leadview) -> None:
    """The rebuild ends: what is behind the transaction will be written to both generations."""
    name = leadview.topics.name(resources.LEAD)
    leadview.serve()
    with transaction(leadview):
        leadview.publish(crm.lead(2, stage="ACCEPTED"), partition=0)
        said = f"A transaction is open in {name}:0 since 20"
        leadview.run("rebuild", "--max-latency", "0").ends(0, said)
        leadview.run("verify", "--next").ends(1, said, "no difference in the rest")
        leadview.run("promote").ends(1, "Not promoted", said)
        assert number_of(leadview.state().live) == 1
        leadview.run("promote", "--force").ends(0, "generation 2 is served")
    leadview.wait_until_current()
    leadview.run("verify").ends(0, "no difference")
    assert leadview.documents() == leadview.expected()
    assert leadview.documents(1) == leadview.expected()


def test_transactions_of_the_usual_length_are_no_problem(leadview: Leadview) -> None:
    """Not even if the times of their records are a year ago, as in an import. The last records are those of one that
    was aborted, so that the positions have to pass its markers.
    """
    projector = leadview.serve()
    with leadview.api() as api:
        wait_until(lambda: get(api).status == 200, "the lead is served")
        status, version = leadview.start("status"), 1
        while status.running:
            version += 1
            leadview.topics.begin_transaction(
                crm.lead(version, referrer=f"{version}"), seconds=-A_YEAR
            ).commit_transaction()
        # A record that was committed a moment ago, and is not applied yet, waits since a year ago.
        assert status.wait(PATIENCE_SECONDS) in (0, 1)
        assert "transaction" not in status.log.read_text()
        committed_at = datetime.now(UTC)
        with transaction(leadview, partitions=(0, 1, 2), seconds=-A_YEAR):
            pass
        leadview.run("verify").ends(0, "no difference")
        last = wait_for(lambda: get(api), lambda last: as_of(last) >= committed_at, "everything is there")
        assert (last.json["referrer"], get(api, IMPORTED).status) == (f"{version}", 404)
        leadview.redis.flushall()
        wait_until(lambda: get(api).status == 200, "it is complete again")
    wait_until(lambda: is_well(leadview), "all is well")
    assert "open_transaction" not in projector.log.read_text()


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(-A_YEAR, id="the times of its records are a year ago"),
        pytest.param(FUTURE, id="the times of its records are in the future"),
    ],
)
def test_transaction_is_open_in_several_partitions_of_access(leadview: Leadview, seconds: float) -> None:
    """It survives the projector, and one that has begun elsewhere without records holds back nothing."""
    topic = leadview.topics.name(resources.API_KEY)
    port = free_port()
    projector = leadview.serve()
    messages = [crm.api_key(1, id=crm.uuid(0xF0 + number), hash=crm.key_hash(number)) for number in range(2)]
    producer = leadview.topics.begin_transaction(messages[0], partition=0, seconds=seconds)
    producer.produce(topic, key=messages[1].key, value=messages[1].value, partition=1)
    producer.flush()
    idle = leadview.topics.begin_transaction()
    with leadview.api() as api:
        leadview.publish(crm.api_key(2, status="revoked"), partition=0)
        revoked_at = datetime.now(UTC)
        said = leadview.wait_for_verdict("a transaction is open in", f"{topic}:0", f"{topic}:1")
        assert "a revoked key may still work" in said
        projector.stop()
        leadview.start("run", metrics_port=port)
        leadview.wait_for_verdict("a transaction is open in")
        wait_until(lambda: metric(port, f'{AGE}{{topic="{topic}"}}'), "the metric has it")
        assert as_of(get(api)) < revoked_at
        leadview.run("verify").ends(0, "no difference")
        leadview.run("verify", "--access").ends(1, f"A transaction is open in {topic}:0 since", f"{topic}:1 since")
        producer.commit_transaction()
        wait_until(lambda: get(api).status == 401, "the key is revoked")
    idle.abort_transaction()
    wait_until(lambda: is_well(leadview), "all is well")
    leadview.run("verify", "--access").ends(0, "no difference")


@pytest.mark.long
def test_the_leader_moves_while_a_transaction_is_open(three_brokers: tuple[ApacheKafka, Leadview]) -> None:
    """The new one knows the transaction as well, and since when it is open."""
    brokers, leadview = three_brokers
    name = leadview.topics.name(resources.LEAD)
    leadview.serve(crm.organization(), crm.api_key(), crm.contact(), crm.lead(1))
    producer = leadview.topics.begin_transaction(crm.lead(1, id=IMPORTED))
    leadview.publish(crm.lead(2, stage="ACCEPTED"))
    [before] = leadview.wait_for_verdict(f"a transaction is open in {name}:0 since ").stdout.splitlines()[:1]
    leader = admin(brokers.bootstrap_servers).list_topics(name).topics[name].partitions[0].leader - 1
    brokers.kill(leader)
    since = before.partition(" since ")[2].split()[0]
    leadview.wait_for_verdict(f"a transaction is open in {name}:0 since {since}")
    leadview.run("verify").ends(1, f"A transaction is open in {name}:0 since {since}")
    brokers.restart(leader)
    producer.commit_transaction(2 * PATIENCE_SECONDS)
    leadview.wait_until_current()
    wait_until(lambda: is_well(leadview), "all is well", 2 * PATIENCE_SECONDS)
    leadview.run("verify").ends(0, "no difference")


def test_recreated_organization_is_not_served_before_its_newest_keys_can_be_read(leadview: Leadview) -> None:
    """Otherwise a revoked key would be accepted again."""
    leadview.serve(crm.api_key(5), crm.lead(5))
    leadview.publish(crm.deleted(resources.ORGANIZATION, 6))
    leadview.wait_until_current()
    wait_until(lambda: not leadview.redis.exists(names.JOBS), "the organization is erased")
    message = crm.api_key(1, id=crm.uuid(0xF2), hash=crm.key_hash(2), organization_id=crm.OTHER_ORGANIZATION)
    with leadview.api() as api:
        partition = next(number for topic, number in leadview.topics.end_offsets if topic.endswith("api-keys"))
        producer = leadview.topics.begin_transaction(message, partition=partition)
        leadview.publish(crm.api_key(6, status="revoked"), partition=partition)
        leadview.publish(crm.organization(7))
        answers = [wait_for(lambda: get(api).status, lambda status: status != 401, "it is recreated")]
        leadview.wait_for_verdict("a transaction is open")
        answers.append(get(api).status)
        producer.commit_transaction()
        answers.append(wait_for(lambda: get(api).status, lambda status: status != 503, "it is served again"))
    assert answers == [503, 503, 401]
