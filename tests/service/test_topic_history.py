"""Topics that lose their history: deleted and created again, or cut off below the position of a projector.

Documents of records that Kafka no longer has are still served then. So `status`, `doctor`, `/healthz`, the metrics and
an alert name it, until `verify` finds no difference, or a generation is served that was filled afterwards.
"""

import shutil
from contextlib import ExitStack
from pathlib import Path

import pytest
from msgspec.structs import replace

from devstack.apache_kafka import ApacheKafka
from devstack.child import Child
from devstack.ports import free_port
from devstack.redis_server import RedisServer
from projector.errors import Refused
from projector.ledger import breaks, copies
from projector.ledger.ledger import Sessions
from schemas import resources
from tests.harness import control, crm
from tests.harness.generations import ids
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import metric
from tests.harness.projection import Projection
from tests.harness.services import Kafka
from tests.harness.topics import Topics
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

LEADS = [crm.uuid(100 + number) for number in range(20)]
MORE = [crm.uuid(1000 + number) for number in range(60)]
UNVERIFIED = "leadview_projector_unverified_topic"


def publish_first(leadview: Leadview) -> None:
    leadview.publish(crm.organization(1), crm.api_key(1), crm.contact(1))
    leadview.publish_all(crm.lead(1, id=lead) for lead in LEADS)


def promote_a_rebuild(leadview: Leadview) -> None:
    """Documents that Kafka no longer has would vanish, so it is refused without force."""
    leadview.run("rebuild", "--max-latency", "0").ends(0)
    leadview.run("promote").ends(1)
    leadview.run("promote", "--force").ends(0)
    assert leadview.documents() == leadview.expected()
    wait_until(lambda: is_well(leadview), "all is well")


def publish_again(leadview: Leadview, version: int = 2) -> None:
    """More than there was before, so that the new topic has the stored positions."""
    leadview.publish_all(crm.lead(version, id=lead, referrer="new") for lead in LEADS)
    leadview.publish_all(crm.lead(1, id=lead) for lead in MORE)


def problems(leadview: Leadview) -> str:
    return " ".join(leadview.ask("status", "--json").json["problems"])


def is_well(leadview: Leadview) -> bool:
    return leadview.ask("status").status == 0


@pytest.mark.apache
def test_topics_created_again_without_a_projector_are_named_at_once(leadview: Leadview) -> None:
    """They are named before any projector has noticed it. Tombstones count, although their offsets are lower than those
    in the former topics: a lead is deleted, and a key stops working. `verify` waits for the projectors, which have not
    read anything of the new topics yet.
    """
    leadview.topics.add_partitions(resources.LEAD, 4)
    for _ in range(3):  # offsets that the new topic does not reach
        leadview.publish(*(crm.lead(1, id=lead) for lead in LEADS), partition=0)
    back = crm.uuid(5000)
    leadview.publish(crm.organization(1), crm.contact(1))
    leadview.publish(crm.lead(1, id=back), crm.tombstone(resources.LEAD, back, seconds=1), partition=0)
    leadview.publish(*(crm.api_key(version) for version in range(1, 9)), partition=0)
    leadview.serve().stop()
    leadview.topics.recreate(resources.API_KEY, 1)
    leadview.publish(crm.tombstone(resources.API_KEY, seconds=3000))
    leadview.topics.recreate(resources.LEAD, 1)
    leadview.publish(*(crm.lead(1, id=lead) for lead in LEADS[1:]))
    leadview.publish(crm.tombstone(resources.LEAD, LEADS[0], seconds=3000), crm.lead(2, id=back, seconds=3000))
    leads, keys = leadview.topics.name(resources.LEAD), leadview.topics.name(resources.API_KEY)
    for said in (problems(leadview), leadview.run("doctor").output):
        assert f"topic {leads} was deleted and created again" in said
        assert keys in said
    verifying = leadview.start("verify")
    leadview.start("run")
    assert verifying.wait(2 * PATIENCE_SECONDS) == 0, verifying.log.read_text()
    leadview.wait_until_current()
    assert leadview.documents() == leadview.expected()
    wait_until(lambda: leads not in problems(leadview), "the documents are as in Kafka, so their problem has ended")
    assert keys in problems(leadview), "nobody has verified access"
    wait_until(lambda: leadview.run("verify", "--access").status == 0, "the key is gone, as in Kafka")
    wait_until(lambda: is_well(leadview), "all is well again")


@pytest.mark.apache
def test_topic_created_again_is_a_problem_until_nothing_of_it_is_served(leadview: Leadview) -> None:
    """Documents that Kafka no longer has are a problem until they are not served, also if nobody publishes to the new
    topic at all. `tests/troubles` compares what every surface says meanwhile.
    """
    publish_first(leadview)
    port = free_port()
    leadview.serve(metrics_port=port)
    leadview.topics.recreate(resources.LEAD, 3)
    wait_until(lambda: "created again" in problems(leadview), "it is named")
    wait_until(lambda: metric(port, UNVERIFIED) == 1, "the metric has it")
    assert "publish all" in problems(leadview)
    leadview.publish(crm.lead(3, id=LEADS[0]))
    leadview.wait_until_current()
    leadview.run("verify").ends(1)
    assert "created again" in problems(leadview)
    promote_a_rebuild(leadview)
    leadview.run("rollback").ends(0)
    assert "created again" in problems(leadview), "the former generation has them still"
    publish_again(leadview, 4)
    leadview.wait_until_current()
    assert leadview.documents() == leadview.expected()
    leadview.run("verify").ends(0)
    wait_until(lambda: is_well(leadview), "all is well again")
    wait_until(lambda: metric(port, UNVERIFIED) == 0, "the metric ends as well")


@pytest.mark.apache
def test_log_that_was_cut_off_and_grew_again_is_noticed(tmp_path: Path) -> None:
    """As after an unclean election, or after a disk was restored: the log has other records in place of its end. One
    projector runs meanwhile, and another one is started afterwards. Kafka is theirs, because it loses records."""
    data, kept = tmp_path / "kafka" / "1" / "data", tmp_path / "kept"
    with ExitStack() as stack:
        broker = stack.enter_context(ApacheKafka.start(tmp_path / "kafka"))
        kafka = Kafka("apache", broker.bootstrap_servers, broker.create_topic)
        leadviews = []
        for way in ("stopped", "running"):
            redis = stack.enter_context(RedisServer.start(tmp_path / way / "redis"))
            leadview = Leadview(kafka, f"{way}.", redis, tmp_path / way, kafka_session_timeout=2)
            leadviews.append(stack.enter_context(leadview))
            leadview.topics.create(partitions=1)
            publish_first(leadview)
        stopped, running = leadviews
        logs = [f"{leadview.topics.name(resources.LEAD)}-0" for leadview in leadviews]
        _copy(logs, data, kept)
        projector, _ = map(_with_records_to_lose, leadviews)
        projector.stop()
        broker.shut_down(0)
        _copy(logs, kept, data)
        broker.restart(0)
        for leadview in leadviews:
            publish_again(leadview)  # more than was lost
        stopped.start("run")
        for leadview in leadviews:
            _assert_named(leadview)
        # Those whose newest event is lost are newer in Redis than in Kafka: only a rebuild repairs that.
        running.run("verify").ends(1)
        promote_a_rebuild(running)


def _copy(logs: list[str], source: Path, target: Path) -> None:
    """Without their indexes, which a broker that runs has not finished: it makes those that it does not find."""
    for log in logs:
        shutil.rmtree(target / log, ignore_errors=True)
        shutil.copytree(source / log, target / log, ignore=shutil.ignore_patterns("*index"))


def _with_records_to_lose(leadview: Leadview) -> Child:
    """Returns a projector that has applied them."""
    lost = Topics(leadview.kafka, leadview.prefix)  # apart from what `leadview` expects
    lost.publish(crm.lead(3, id=lead, referrer="lost") for lead in LEADS)
    projector = leadview.start("run")
    wait_until(lambda: leadview.has_applied(lost.end_offsets), "what will be lost is applied")
    leadview.wait_until_served()
    return projector


def _assert_named(leadview: Leadview) -> None:
    leadview.wait_until_current()
    lost = f"topic {leadview.topics.name(resources.LEAD)} has lost records"
    wait_until(lambda: lost in problems(leadview), "it is named", 2 * PATIENCE_SECONDS)
    expected, found = leadview.expected(), leadview.documents()
    more = {entity: document for entity, document in expected.items() if entity[2] in MORE}
    assert (len(more), more | found) == (len(MORE), found), "every record after the cut is applied"


async def test_note_names_what_was_written_until_it_is_confirmed(projection: Projection) -> None:
    first, second = ids(1, 2)
    control.write(projection.client, written=(1, 2))
    store, sessions = projection.store, Sessions(projection.store)
    before = await sessions.open()
    noted = breaks.new_break(before.record, "topic_recreated", "crm.leads", "old", "new")
    assert await breaks.note(store, before.record, [noted])
    assert not await breaks.note(store, before.record, [noted]), "the record has changed since"
    state = (await copies.require(store)).state
    assert (state.breaks, state.histories) == ((noted,), {"crm.leads": 1})
    with pytest.raises(Refused, match=r"crm\.leads has lost its history while generation 2"):
        await sessions.open_rebuild(second)
    await breaks.confirm(store, second, state.breaks)
    assert [it.unverified for it in (await copies.require(store)).state.breaks] == [(first,)]
    await sessions.open_rebuild(second)
    # Noted once more meanwhile, in the same second: what was verified before says nothing about it.
    record = await copies.require(store)
    again = breaks.new_break(record, "topic_recreated", "crm.leads", "old", "new")
    assert await breaks.note(store, record, [replace(again, noticed_at=noted.noticed_at, unverified=(first,))])
    await breaks.confirm(store, first, record.state.breaks)
    state = (await copies.require(store)).state
    assert ([it.unverified for it in state.breaks], state.histories) == ([(first,)], {"crm.leads": 2})
    await breaks.confirm(store, first, state.breaks)
    state = (await copies.require(store)).state
    assert (state.breaks, state.histories) == ((), {"crm.leads": 2}), "the history is not counted from the beginning"
