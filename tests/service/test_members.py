"""Others in the consumer group of an installation: Kafka gives them partitions, and nobody applies what comes there."""

import time
from functools import partial
from pathlib import Path

import pytest

from devstack.ports import free_port
from devstack.redis_server import RedisServer
from projector.kafka.partitioner import partition_of
from schemas import resources
from tests.harness import crm
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import metric
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.apache

PROBLEMS = "leadview_projector_problems"


def kinds(leadview: Leadview) -> list[str]:
    return list(leadview.ask("status", "--json").json["kinds"])


def is_foreign_member_named(leadview: Leadview) -> bool:
    return "foreign_member" in kinds(leadview)


def test_person_with_a_console_consumer_is_named(leadview: Leadview) -> None:
    """By client id, host and partitions, on every surface. It is over as soon as the consumer has ended."""
    port = free_port()
    leadview.serve(crm.organization(), crm.api_key(), metrics_port=port)
    assert leadview.ask("status").status == 0
    topic = leadview.topics.name(resources.LEAD)
    with leadview.topics.consumed(resources.LEAD, leadview.group):
        said = leadview.wait_for_verdict("console-consumer at", f"in {leadview.group} (", f"{topic}:").stdout
        assert "give it another group" in said
        assert "start more" not in said
        assert kinds(leadview) == ["foreign_member"]
        wait_until(lambda: metric(port, PROBLEMS) == 1, "the metric has it")
        wait_until(lambda: "console-consumer at" in leadview.run("doctor").output, "doctor says so")
    wait_until(lambda: leadview.ask("status").status == 0, "all is well again", 2 * PATIENCE_SECONDS)
    wait_until(lambda: metric(port, PROBLEMS) == 0, "the metric ends as well")


def test_another_installation_in_the_same_group_is_named_by_both(leadview: Leadview, tmp_path: Path) -> None:
    leadview.serve(crm.organization(), crm.api_key())
    (tmp_path / "other").mkdir()
    with (
        RedisServer.start(tmp_path / "redis") as redis,
        Leadview(leadview.kafka, leadview.prefix, redis, tmp_path / "other") as other,
    ):
        other.group = leadview.group
        other.start("run")
        for installation in (leadview, other):
            wait_until(partial(is_foreign_member_named, installation), "the other one is named")
    wait_until(lambda: leadview.ask("status").status == 0, "all is well again", 3 * PATIENCE_SECONDS)


def test_our_own_projectors_are_no_strangers(leadview: Leadview) -> None:
    """Also those that have just joined, and those that were killed and are members still."""
    leadview.serve(crm.organization(), crm.api_key())
    second = leadview.start("run")
    wait_until(lambda: leadview.ask("status", "--json").json["projectors"] == 2, "both are alive")
    assert "foreign_member" not in kinds(leadview)
    second.kill()
    assert "foreign_member" not in kinds(leadview)
    wait_until(lambda: "no other program is a member" in leadview.run("doctor").output, "doctor says so")


def test_producer_with_another_partitioner_is_a_note(leadview: Leadview) -> None:
    """What it publishes is served all the same. Records from before partitions were added are old, and say nothing."""
    leadview.serve(crm.organization(), crm.api_key())
    old, new = crm.lead(), crm.contact(seconds=time.time() - crm.at_ms(0) / 1000)
    for message in (old, new):
        leadview.publish(message, partition=(partition_of(message.key, 3) + 1) % 3)
    contacts = leadview.topics.name(resources.CONTACT)
    said = f"{contacts}: records are in other partitions than murmur2 gives for their message keys"
    wait_until(lambda: said in leadview.ask("status").stdout, "status has a note")
    status = leadview.ask("status", "--json").json
    assert (status["kinds"], status["note_kinds"]) == ([], ["misplaced"])
    assert f"{leadview.topics.name(resources.LEAD)}: records" not in leadview.ask("status").stdout
