"""The rights of deploy/kafka-acls.sh.example: enough for the projector and its commands, and not more."""

import argparse
import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import GroupAuthorizationFailedError, KafkaError, TopicAuthorizationFailedError
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
)
from confluent_kafka.admin import ResourceType as Type  # type: ignore[attr-defined]

from devstack.apache_kafka import ApacheKafka, plain_login
from schemas import resources
from tests.harness import crm
from tests.harness.leadview import Leadview
from tests.harness.services import Kafka, RedisService
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.long

EXAMPLE = Path(__file__).parents[2] / "deploy" / "kafka-acls.sh.example"
PROJECTOR, CRM = "leadview-projector", "crm"
PREFIX, GROUP = "crm.", "leadview"


def bindings() -> Iterator[AclBinding]:
    """What `kafka-acls.sh` makes of the lines of the example."""
    parser = argparse.ArgumentParser()
    for option in ("bootstrap-server", "command-config", "allow-principal", "topic", "group", "resource-pattern-type"):
        parser.add_argument(f"--{option}")
    parser.add_argument("--operation", action="append")
    parser.add_argument("--add", action="store_true", required=True)
    lines = EXAMPLE.read_text().replace("\\\n", " ").splitlines()
    for line in lines:
        program, *words = shlex.split(line, comments=True) or ["#"]
        if program == "#":
            continue
        assert program == "kafka-acls.sh"
        given = parser.parse_args(words)
        kind, name = (Type.TOPIC, given.topic) if given.topic else (Type.GROUP, given.group)
        pattern = ResourcePatternType[given.resource_pattern_type.upper()]
        for operation in given.operation:
            right = AclOperation["DESCRIBE_CONFIGS" if operation == "DescribeConfigs" else operation.upper()]
            yield AclBinding(kind, name, pattern, given.allow_principal, "*", right, AclPermissionType.ALLOW)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApacheKafka]:
    users = dict.fromkeys((PROJECTOR, CRM), "secret")
    with ApacheKafka.start(tmp_path_factory.mktemp("kafka"), login=plain_login(users), acls=True) as broker:
        client = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        for added in client.create_acls(list(bindings())).values():
            added.result(PATIENCE_SECONDS)
        yield broker


def sign_in(broker: ApacheKafka, user: str) -> dict[str, str]:
    return {
        "bootstrap_servers": broker.sasl_servers,
        "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": "PLAIN",
        "sasl_plain_username": user,
        "sasl_plain_password": "secret",
    }


def test_the_example_is_enough(broker: ApacheKafka, redis_server: RedisService, tmp_path: Path) -> None:
    kafka = Kafka("apache", broker.bootstrap_servers, broker.create_topic)
    settings = {
        "kafka_security_protocol": "SASL_PLAINTEXT",
        "kafka_sasl_username": PROJECTOR,
        "kafka_sasl_password": "secret",
    }
    with Leadview(kafka, PREFIX, redis_server, tmp_path, **settings) as leadview:
        leadview.topics.create(partitions=1)
        leadview.publish(crm.organization(), crm.contact(), crm.lead())
        signed_in = {"kafka_bootstrap_servers": broker.sasl_servers, "group_id": GROUP}
        leadview.serve(**signed_in)
        # It waits for Kafka for little more than a second, and a busy machine may need longer.
        wait_until(lambda: leadview.run("status", **signed_in).status == 0, "all is well")
        for command in (["doctor"], ["verify"], ["rebuild", "--promote", "--max-latency", "0"], ["drop"]):
            leadview.run(*command, **signed_in).ends(0)
        leadview.publish(crm.lead(2, stage="unknown"))  # accepted records are stored in a group of their own
        bad = f"{leadview.topics.name(resources.LEAD)}:0:1"
        wait_until(lambda: bad in leadview.run("dead-letters", "list", **signed_in), "it is parked")
        accept = partial(leadview.run, "dead-letters", "accept", bad, "--note", "a test")
        accept(**signed_in).ends(0)
        refused = f"Kafka refuses the user {PROJECTOR} the right Read on group other.accepted: let an administrator"
        accept(**signed_in | {"group_id": "other"}).ends(1, refused, "--operation Read --group other.accepted")
        # A projector says at once which group it may not join: not as a line that has made no step for a while.
        leadview.start("run", **signed_in | {"group_id": "other"})
        granted = f"{PROJECTOR} --operation Read --group other"
        wait_until(lambda: granted in leadview.run("status", **signed_in), "it is named with the line that grants it")
        assert "no step has succeeded" not in leadview.run("status", **signed_in)
        # The core product may write, and so describe, what it may neither read nor describe the configuration of.
        lacks = f"Kafka refuses the user {CRM} the right"
        leadview.run("doctor", **signed_in | {"kafka_sasl_username": CRM}).ends(
            1,
            f"note     Kafka topics: whether all are compacted is not known. {lacks} DescribeConfigs on topics crm.",
            "unknown  Kafka deletions: this user lacks the right DescribeConfigs",
            f"problem  Kafka records: {lacks} Read on topic crm.",
            f"problem  Kafka consumer groups: {lacks} Read on group leadview",
            f"--add --allow-principal User:{CRM} --operation Read --group leadview",
        )


async def test_the_projector_cannot_write_a_record(broker: ApacheKafka) -> None:
    broker.create_topic("crm.leads")
    async with AIOKafkaProducer(**sign_in(broker, PROJECTOR)) as producer:
        with pytest.raises(TopicAuthorizationFailedError):
            await producer.send_and_wait("crm.leads", b"x")


@pytest.mark.parametrize(
    ("user", "topic", "group", "refusal"),
    [
        pytest.param(PROJECTOR, "other", GROUP, TopicAuthorizationFailedError, id="another topic"),
        pytest.param(PROJECTOR, "crm.leads", "other", GroupAuthorizationFailedError, id="another group"),
        pytest.param(CRM, "crm.leads", GROUP, GroupAuthorizationFailedError, id="the group of the projector"),
    ],
)
async def test_user_without_a_right_may_not_read(
    broker: ApacheKafka, user: str, topic: str, group: str, refusal: type[KafkaError]
) -> None:
    broker.create_topic(topic)
    consumer = AIOKafkaConsumer(topic, group_id=group, **sign_in(broker, user))
    try:
        with pytest.raises(refusal):
            await _read(consumer)
    finally:
        await consumer.stop()


async def _read(consumer: AIOKafkaConsumer) -> None:
    await consumer.start()
    await consumer.getone()
