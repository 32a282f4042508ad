"""`validate --topic`: the records that a topic has, judged like those of a file."""

import orjson
from confluent_kafka.admin import AdminClient

from schemas import resources
from tests.harness import crm
from tests.harness.commands import Finished
from tests.harness.leadview import Leadview


def test_the_records_of_a_topic(leadview: Leadview) -> None:
    """Redis is away, and no consumer group appears."""

    def validate(*words: str, **settings: str) -> Finished:
        return leadview.call("validate", *words, redis_url="redis://127.0.0.1:1/0", **settings)

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
