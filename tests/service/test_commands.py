"""Commands and requests of people on a whole installation: what they are told is true, and no key is in it."""

import socket
from pathlib import Path
from typing import Any

import orjson
import pytest
from confluent_kafka.admin import AdminClient

from devstack.ports import free_port
from projector.kafka.topics import TopicsRequest, _MetadataRequest_v10
from schemas import names, resources
from schemas.api_keys import key_hash, mint
from tests.harness import crm
from tests.harness.api_server import LEADS, ApiServer
from tests.harness.commands import Finished
from tests.harness.crm import ORGANIZATION
from tests.harness.leadview import Leadview
from tests.harness.services import Kafka, RedisService, not_available
from tests.harness.waiting import PATIENCE_SECONDS, wait_until


@pytest.mark.apache
@pytest.mark.parametrize("words", [("run",), ("verify", "--continuous")], ids=" ".join)
def test_the_metrics_port_is_taken(leadview: Leadview, words: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        done = leadview.run(*words, metrics_port=port)
    assert done.status == 1
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in done.stderr
    assert "LEADVIEW_METRICS_PORT" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.apache
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        pytest.param({"kafka_sasl_password": "right"}, "leads: missing", id="right"),
        pytest.param(
            {"kafka_sasl_password": "wrong"},
            "Kafka cannot be read: Kafka refuses the user 'crm' or its password: correct LEADVIEW_KAFKA_SASL_USERNAME",
            id="a wrong password",
        ),
        pytest.param(
            {"kafka_security_protocol": "PLAINTEXT"},
            "LEADVIEW_KAFKA_SECURITY_PROTOCOL (PLAINTEXT) is not that of this port",
            id="another protocol",
        ),
        pytest.param(
            {"kafka_bootstrap_servers": "127.0.0.1:1", "kafka_sasl_password": "right"},
            "Kafka cannot be reached at 127.0.0.1:1",
            id="another address",
        ),
    ],
)
def test_a_sign_in_to_kafka(leadview_with_own_redis: Leadview, settings: dict[str, str], said: str) -> None:
    """There is no topic, which only somebody who is signed in is told."""
    leadview = leadview_with_own_redis
    if not leadview.kafka.login_servers:
        not_available("nobody signs in to this Kafka")
    login = {
        "kafka_bootstrap_servers": leadview.kafka.login_servers,
        "kafka_security_protocol": "SASL_PLAINTEXT",
        "kafka_sasl_username": "crm",
    }
    # `status` waits for Kafka for little more than a second, and a busy machine may need longer.
    wait_until(lambda: said in leadview.run("status", **login | settings).stdout, "status says it")


def test_asking_for_a_topic_creates_none(
    embedded_kafka: Kafka, redis_server: RedisService, topic_prefix: str, tmp_path: Path
) -> None:
    """Though this broker creates the topics that clients ask for."""
    with Leadview(embedded_kafka, topic_prefix, redis_server, tmp_path) as leadview:
        for command in ("status", "doctor"):
            assert "missing" in leadview.run(command).stdout
        created = leadview.topics.admin.list_topics(timeout=PATIENCE_SECONDS).topics
        assert not [topic for topic in created if topic.startswith(topic_prefix)]
    newer = TopicsRequest(["leads"]).build(_MetadataRequest_v10)  # which this broker does not know
    assert newer.allow_auto_topic_creation is False


def test_the_records_of_a_topic(leadview: Leadview) -> None:
    """Redis is away, and no consumer group appears."""

    def validate(*words: str, **settings: str) -> Finished:
        return leadview.run("validate", *words, redis_url="redis://127.0.0.1:1/0", **settings)

    leads = leadview.topics.name(resources.LEAD)
    framed = crm.Message(resources.LEAD, crm.lead(1).key, b"\0\0\0\0\x07\x02\x48abc")
    messages = [crm.lead(1), crm.lead(2, stage="new"), framed, crm.binary(crm.lead(3, event_typ_key="x"))]
    [_, stage, avro, typo] = leadview.publish(*messages, partition=0)

    status, output, errors = validate("--topic", leads)
    assert (status, errors) == (1, "")
    first, second, last = output.splitlines()
    assert first.startswith(f"{leads}:0:{stage.offset}: `$.data.stage` is not valid: allowed are ACCEPTED, ")
    assert first.endswith(" (event e1 of /crm)")
    assert second.startswith(f"{leads}:0:{avro.offset}: ")
    assert "frame of a schema registry" in second
    assert last == "4 records: 2 bad"

    status, output, _ = validate("--strict", "--json", "--topic", leads, "--from", "-1")
    [fault] = orjson.loads(output)["faults"]
    assert (status, fault["topic"], fault["partition"], fault["offset"]) == (1, leads, 0, typo.offset)
    assert (fault["path"], fault["expected"]) == ("$.event_typ_key", "event_type_key")

    assert validate("--topic", leads, "--from", str(typo.offset))[:2] == (0, "1 record: all good\n")
    contacts = leadview.topics.name(resources.CONTACT)
    assert validate("--topic", contacts)[:2] == (0, "0 records: nothing to check\n")
    assert validate("--strict", "--topic", contacts)[:2] == (
        1,
        f"{contacts}: it has no record, so nothing was checked\n0 records: nothing to check\n",
    )
    status, output, errors = validate("--topic", "none.leads", topic_prefix="none.")
    assert (status, output) == (2, "")
    assert "topic none.leads: missing" in errors

    admin = AdminClient({"bootstrap.servers": leadview.kafka.bootstrap_servers})
    groups = {group.group_id for group in admin.list_consumer_groups().result().valid}
    assert leadview.group not in groups


KEY, REVOKED, OTHER, UNKNOWN = (mint(ORGANIZATION, digit * 30) for digit in "1234")
ONE_LEFT = {"key": {"quota": 3, "window_seconds": 36_000}}
OTHER_KEY = crm.uuid(0xF2)


@pytest.mark.apache
def test_a_request_is_found_again(leadview: Leadview) -> None:
    leadview.serve(
        crm.organization(1, rate_limits=ONE_LEFT),
        crm.api_key(1, hash=key_hash(KEY)),
        crm.api_key(1, id=OTHER_KEY, hash=key_hash(REVOKED), status="revoked"),
        crm.api_key(1, id=crm.uuid(0xF3), hash=key_hash(OTHER)),
        crm.lead(1),
    )
    port = free_port()
    child = leadview.start_api(port, api_redis_timeout=20)
    api = ApiServer(port)
    wait_until(api.is_ready, "the API is ready")

    def get(path: str, key: str, request_id: str) -> int:
        return api.get(path, key=key, headers={"X-Request-Id": request_id}).status

    assert get(LEADS + crm.LEAD, KEY, "good") == 200
    assert get(LEADS + crm.OTHER_LEAD, KEY, "missing") == 404
    assert get(LEADS + crm.LEAD, KEY, "good-too") == 200
    assert get(LEADS + crm.LEAD, KEY, "too-many") == 429
    assert get(LEADS + crm.LEAD, REVOKED, "revoked") == 401
    assert get(LEADS + crm.LEAD, UNKNOWN, "unknown") == 401
    assert get(f"/{KEY}", KEY, KEY) == 404
    child.stop()

    logged = [orjson.loads(line) for line in child.log.read_text().splitlines() if line.startswith("{")]
    of_requests = {line["request_id"]: line for line in logged if "request_id" in line}
    assert of_requests.keys().isdisjoint(("good", "good-too"))
    missing = of_requests["missing"]
    assert (missing["status"], missing["record"], missing["organization"]) == (404, crm.OTHER_LEAD, ORGANIZATION)
    assert not any(key[8:30] in child.log.read_text() for key in (KEY, REVOKED, UNKNOWN))

    name = names.usage(names.organization(ORGANIZATION))
    assert set(leadview.redis.hkeys(name)) == {key_hash(KEY).encode(), key_hash(REVOKED).encode()}, "not the unknown"
    assert 0 < leadview.redis.ttl(name) <= 90 * 24 * 3600
    used = usage(leadview)
    of_key, of_revoked, unused = (used[key_hash(each)] for each in (KEY, REVOKED, OTHER))
    assert (of_key["requests"], of_key["refusals"]) == (4, 1)
    assert of_key["api_keys"] == [crm.API_KEY]
    assert of_key["last_used"] >= of_key["counted_since"]
    assert (of_revoked["requests"], of_revoked["refusals"]) == (1, 1)
    assert (unused["requests"], unused["last_used"]) == (0, None)
    shown = leadview.run("usage", ORGANIZATION)
    assert "never" in shown
    assert crm.API_KEY in shown
    assert KEY[8:] not in shown
    assert "no API keys" in leadview.run("usage", crm.OTHER_ORGANIZATION)

    leadview.redis.hset(name, mapping={f"another {number}": "1 0 1 1" for number in range(998)})
    with leadview.api() as api:
        assert api.get(LEADS + crm.LEAD, key=REVOKED).status == 401
        assert api.get(LEADS + crm.LEAD, key=OTHER).status == 200
    used = usage(leadview)
    assert used[key_hash(REVOKED)]["requests"] == 2, "counts of two processes add up"
    assert used[key_hash(OTHER)]["requests"] == 0, "1000 keys of an organization are counted, and no more"
    leadview.publish(crm.deleted(resources.ORGANIZATION, 2))
    wait_until(lambda: not usage(leadview), "the counts are erased with the organization")
    wait_until(lambda: not leadview.redis.exists(name), "with their key")


def usage(leadview: Leadview) -> dict[str, dict[str, Any]]:
    found: list[dict[str, Any]] = orjson.loads(leadview.run("usage", ORGANIZATION, "--json").stdout)
    return {each["hash"]: each for each in found}
