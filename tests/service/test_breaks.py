"""Breaks: whatever makes it impossible to know that what is served is right has a name on every surface, until what is
served was compared with Kafka.
"""

import time
from collections.abc import Sequence

import pytest

from devstack.ports import free_port
from schemas import names, resources
from schemas.words import utc
from tests.harness import control, crm
from tests.harness.api_server import LEADS
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import ask, metric
from tests.harness.waiting import wait_until

UNVERIFIED = "leadview_projector_unverified_topic"
DAY_MS = 86_400_000


def kinds(leadview: Leadview) -> list[str]:
    found: list[str] = leadview.ask("status", "--json").json["kinds"]
    return found


def wait_for_kinds(leadview: Leadview, *expected: str) -> None:
    wait_until(lambda: sorted({*kinds(leadview)}) == sorted(expected), lambda: f"{expected}, not {kinds(leadview)}")


def assert_named(leadview: Leadview, port: int, kind: str, topics: Sequence[str]) -> None:
    """Every surface names it: `status`, `doctor`, health and metrics of the projector."""
    wait_for_kinds(leadview, kind)
    wait_until(lambda: ask(port, "/healthz")[0] == 503, "the health says it")
    doctor = leadview.run("doctor")
    doctor.ends(1)
    health = " ".join(ask(port, "/healthz")[1]["problems"])
    for topic in topics:
        assert [topic in said for said in (leadview.run("status").output, doctor.output, health)] == [True] * 3
    values = [{"topic": topic, "problem": kind} for topic in topics]
    wait_until(lambda: all(metric(port, UNVERIFIED, **it) == 1 for it in values), "the metric of each topic")


def moments(leadview: Leadview) -> dict[str, list[int]]:
    """Returns the moments at which each topic was complete, in all shards."""
    found: dict[str, list[int]] = {}
    for tag in control.read_all(leadview.redis):
        for topic, moment in leadview.redis.hgetall(names.copy(names.COMPLETE, tag.encode())).items():
            found.setdefault(topic.decode(), []).append(int(moment))
    return found


def publish_first(leadview: Leadview) -> None:
    leadview.publish(crm.organization(1), crm.api_key(1), crm.contact(1), crm.lead(1))


def test_deletions_that_kafka_may_have_removed(leadview: Leadview) -> None:
    """Projectors stood still for longer than deletions are kept: each topic whose deletions may be missing is named,
    and no answer says any more what it contains. Topics that keep them for longer are not.
    """
    publish_first(leadview)
    short = [leadview.topics.name(kind) for kind in (resources.API_KEY, resources.CONTACT)]
    for topic in short:
        leadview.topics.alter("topic", topic, {"delete.retention.ms": "100"})
    projector = leadview.serve()
    wait_until(lambda: len(moments(leadview)) == len(resources.KINDS), "the topics were complete")
    projector.stop()
    complete = moments(leadview)
    leadview.publish(crm.tombstone(resources.API_KEY, seconds=5), crm.tombstone(resources.CONTACT, seconds=5))
    wait_until(
        lambda: time.time() * 1000 - max(map(max, complete.values())) > 6000, "deletions may have been removed", 30
    )
    port = free_port()
    leadview.start("run", metrics_port=port)
    assert_named(leadview, port, "deletes_missed", short)
    said = f"Kafka deletions: delete.retention.ms of {short[1]} (100 ms), {short[0]} (100 ms) is less than a day"
    assert said in leadview.run("doctor")
    since = {it.topic: it.since for it in leadview.state().breaks}
    assert since == {topic: utc(complete[topic][0]) for topic in short}
    with leadview.api() as api:
        leadview.wait_until_current()
        wait_until(lambda: api.get(LEADS + crm.LEAD, key=crm.KEY).status == 401, "the deletions that are left count")
        assert leadview.run("status", "--json").json["data_as_of"] is None
    leadview.run("verify").ends(0)
    leadview.run("verify", "--access").ends(0)
    wait_for_kinds(leadview)
    wait_until(lambda: metric(port, UNVERIFIED) == 0, "the metrics end as well")


@pytest.mark.parametrize("later_ms", [pytest.param(-2 * DAY_MS, id="older"), pytest.param(DAY_MS, id="in the future")])
def test_a_redis_that_comes_back_from_another_time(leadview_on_cluster: Leadview, later_ms: int) -> None:
    """As a shard that has an older copy, or one that was written under another clock. The others have theirs."""
    leadview = leadview_on_cluster
    publish_first(leadview)
    projector = leadview.serve()
    wait_until(lambda: len(moments(leadview)) == len(resources.KINDS), "the topics were complete")
    projector.stop()
    leads, *_ = [names.copy(names.COMPLETE, tag.encode()) for tag in control.read_all(leadview.redis)]
    topic = leadview.topics.name(resources.LEAD)
    leadview.redis.hset(leads, topic, int(time.time() * 1000) + later_ms)
    leadview.start("run")
    wait_for_kinds(leadview, "deletes_missed")
    assert [(it.kind, it.topic) for it in leadview.state().breaks] == [("deletes_missed", topic)]
    leadview.run("verify").ends(0)
    wait_for_kinds(leadview)
