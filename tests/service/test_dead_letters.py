"""Dead letters: what they say, how they are counted, chosen and replaced, and that they go when nobody needs them.
Once an operator has accepted known bad records, they halt no line again, and new ones still do.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import closing
from functools import partial
from typing import Any

import msgspec
import orjson
import pytest
from aiokafka.structs import OffsetAndMetadata
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from devstack.ports import free_port
from projector.dead_letter import DeadLetter
from projector.errors import Refused
from projector.kafka.accepted import Accepted, AcceptedRecords, OffsetTexts
from projector.offsets import OffsetRange, Ranges, by_partition
from projector.record import Partition
from projector.redis.store import Store
from projector.upkeep import dead_letters
from schemas import names, resources
from schemas.faults import Fault
from schemas.settings import ProjectorSettings
from tests.harness import control, crm
from tests.harness.crm import Message
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import ask, metric
from tests.harness.projection import Projection
from tests.harness.projectors import DEFECTIVE
from tests.harness.waiting import PATIENCE_SECONDS, eventually, wait_until
from tests.service.conftest import everywhere
from tests.service.test_lua_checkpoint import LETTER

TRACE = b"0af7651916cd43dd8448eb211c80319c"
BAD = [
    crm.lead(2, stage="LOST"),
    crm.contact(2, first_name=None),
    crm.organization(2, api_access="yes"),
    crm.api_key(2, status="asleep"),
    crm.Message(resources.LEAD, crm.lead(2, id=crm.OTHER_LEAD).key, b"{"),
]
PARKED = "a bad record became a dead letter"
MENDED = [crm.lead(3), crm.contact(3), crm.organization(3), crm.api_key(3), crm.lead(1, id=crm.OTHER_LEAD)]


def letter_of(message: crm.Message, offset: int, version: int | None) -> DeadLetter:
    return DeadLetter.of(message.record(offset), Fault("other"), version)


@everywhere
async def test_dead_letters_go_when_a_newer_event_was_applied(projection: Projection) -> None:
    """For every kind of entity; in a cluster, too."""
    control.complete_all(projection.settings)
    await projection.apply(*(message.record(9) for message in MENDED))
    go = [letter_of(message, 7, 2) for message in MENDED[:4]] + [letter_of(MENDED[4], 7, None)]
    stay = [
        letter_of(crm.lead(4), 11, 4),
        letter_of(crm.contact(4), 11, None),
        letter_of(crm.lead(1, id=crm.uuid(0x77)), 6, 1),
        msgspec.structs.replace(letter_of(crm.contact(1), 6, 1), accepted=True, note="known"),
        msgspec.structs.replace(letter_of(crm.lead(1), 5, None), key="no key"),
    ]
    go[4] = msgspec.structs.replace(go[4], offset=8)  # the first one is at 7 of the same topic
    await dead_letters.park(projection.store, [*go, *stay])
    assert await dead_letters.clear(projection.store, projection.settings) == 5
    rest = {field.decode() for field in projection.client.hkeys(names.DEAD_LETTERS)}
    assert rest == {letter.field for letter in stay}
    assert await dead_letters.clear(projection.store, projection.settings) == 0


@everywhere
async def test_only_stored_dead_letters_are_replaced(projection: Projection) -> None:
    """One that was dropped meanwhile does not come back, however many there are."""
    letters = [msgspec.structs.replace(LETTER, offset=offset) for offset in range(250)]
    await dead_letters.park(projection.store, letters)
    await dead_letters.delete(projection.store, letters[-1:])
    accepted = [letter.accept("known", 7) for letter in letters]
    assert await dead_letters.replace(projection.store, accepted) == 249
    assert await dead_letters.all_dead_letters(projection.store) == accepted[:-1]
    assert await dead_letters.replace(projection.store, []) == 0


async def test_ranges_and_filters_choose_dead_letters(projection: Projection) -> None:
    letters = [msgspec.structs.replace(LETTER, offset=offset) for offset in range(4)]
    letters.append(msgspec.structs.replace(LETTER, topic="crm.other", key=f"{crm.OTHER_ORGANIZATION}:{crm.LEAD}"))
    await dead_letters.park(projection.store, letters)

    async def chosen(*words: str, **filtered: str) -> list[DeadLetter]:
        named = [OffsetRange.parse(word) for word in words]
        return await dead_letters.choose(projection.store, named, dead_letters.Filter(**filtered))

    where = f"{LETTER.topic}:{LETTER.partition}"
    for words, filtered, expected in (
        ([], {}, letters),
        ([f"{where}:1-2"], {}, letters[1:3]),
        ([f"{where}:3", f"{where}:0-1"], {}, [*letters[:2], letters[3]]),
        ([], {"topic": LETTER.topic}, letters[:4]),
        ([], {"organization": crm.OTHER_ORGANIZATION}, letters[4:]),
        ([], {"reason": LETTER.reason[2:-2]}, letters),
        ([], {"reason": "nobody says this"}, []),
    ):
        assert await chosen(*words, **filtered) == expected, (words, filtered)
    for unknown in (f"{where}:4", f"{LETTER.topic}:7:0"):
        with pytest.raises(Refused, match=f"There is no dead letter {unknown}"):
            await chosen(f"{where}:0", unknown)
    with pytest.raises(Refused, match="No dead letter matches"):
        await dead_letters.matching(projection.store, projection.settings, dead_letters.Filter(reason="nobody"))


@pytest.mark.apache
def test_dead_letters_go_when_they_are_corrected_or_dropped(leadview: Leadview) -> None:
    """One of them is never corrected: an operator accepts it, and drops it."""
    port = free_port()
    projector = leadview.start("run", metrics_port=port, log="projector")
    leadview.publish(*(crm.with_headers(message, traceparent=b"00-%b-b7ad6b7169203331-01" % TRACE) for message in BAD))
    leadview.wait_until_served()
    assert {letter.fault and letter.fault.trace_id for letter in listed(leadview)} == {TRACE.decode()}
    leads = [letter for letter in listed(leadview) if letter.topic == leadview.topics.name(resources.LEAD)]
    assert {letter.version for letter in leads} == {2, None}, "one of them is no JSON"
    lines = [orjson.loads(line) for line in projector.log.read_text().splitlines()]
    parked = {line["record"]: line["reason"] for line in lines if line["message"] == PARKED}
    assert len(listed(leadview)) == len(parked) == metric(port, "leadview_projector_parked_records_total") == 5
    reasons = " ".join(parked.values())
    assert "allowed are ACCEPTED, IN_PROGRESS, NEW, QUOTE_SENT, REJECTED, STALE (event e1 of /crm)" in reasons
    assert "LOST" not in projector.log.read_text()
    assert 'reason="json",topic="' in str(ask(port, "/metrics")[1])

    run, chosen = partial(leadview.run, "dead-letters"), ["--organization", crm.ORGANIZATION, "--reason", "first_name"]
    run("accept", *chosen, "--note", "known").ends(0, "Dead letters among them: 1")
    [accepted] = [letter for letter in listed(leadview) if letter.accepted]
    assert (accepted.note, (accepted.accepted_at or 0) > 1_700_000_000_000) == ("known", True)
    assert "accepted: known" in run("list")
    assert TRACE.decode() in run("show", accepted.field)
    assert re.search(r"  accepted  20\S+Z  known\n", run("show", accepted.field).stdout)
    missing = f"{accepted.topic}:99:0"
    for action in ("list", "show"):
        found = run(action, missing, accepted.field)
        found.ends(1, f"There is no dead letter {missing}")
        assert accepted.field in found.stdout
    assert "5 redriven, 5 still bad" in run("redrive")
    assert run("drop", *chosen).stdout == "1 dropped\n"
    leadview.publish(*(message for message in MENDED if message.kind is not resources.CONTACT))
    wait_until(lambda: listed(leadview) == [], "the dead letters are gone")
    wait_until(lambda: metric(port, "leadview_projector_dead_letters") == 0, "the metric says so")
    leadview.redis.flushall()
    wait_until(leadview.is_served, "everything was read again")
    wait_until(lambda: listed(leadview) == [], "the dropped one, of which nothing newer came, is not stored again")


def listed(leadview: Leadview) -> list[DeadLetter]:
    return msgspec.json.decode(leadview.run("dead-letters", "list", "--json").stdout, type=list[DeadLetter])


@pytest.mark.apache
def test_dead_letters_of_one_lead_are_redriven_in_their_order(leadview: Leadview) -> None:
    """A bad deploy has parked them. Nothing newer was published meanwhile, so the last of them decides."""
    leads = [crm.uuid(0x100001 + 2 * number) for number in range(5)]
    leadview.publish_all(
        crm.lead(version, id=lead, referrer=f"v{version}") for version in range(1, 5) for lead in leads
    )
    leadview.publish(crm.deleted(resources.LEAD, 5, leads[0]), crm.tombstone(resources.LEAD, leads[1]))
    leadview.start("run", command=DEFECTIVE)
    wait_until(lambda: len(listed(leadview)) == 22, "all are parked")
    assert leadview.documents() == {}
    # As if those of one partition had been in a batch that could not be read: one dead letter stands for all of them.
    letters = listed(leadview)
    first, *others = [each for each in letters if each.partition == letters[0].partition]
    leadview.redis.hdel(names.DEAD_LETTERS, *(each.field for each in others))
    whole = msgspec.structs.replace(first, offsets=1 + len(others))
    leadview.redis.hset(names.DEAD_LETTERS, whole.field, whole.stored)
    done = leadview.run("dead-letters", "redrive").ends(0, f"{22 - len(others)} redriven, 0 still bad")
    assert leadview.documents() == leadview.expected()
    assert len(leadview.documents()) == 3

    # Dead letters as an older projector may have left them: of a record that is stale by now, and of none.
    topic, partition, _ = done.stdout.partition(" ")[0].rsplit(":", 2)
    for offset in (0, 9999):
        letter = DeadLetter(topic, int(partition), offset, "key", "an older projector could not read it", 1)
        leadview.redis.hset(names.DEAD_LETTERS, letter.field, msgspec.json.encode(letter).decode())
    again = (f"{topic}:{partition}:0  stale", f"{topic}:{partition}:9999  gone")
    leadview.run("dead-letters", "redrive").ends(0, *again)


class Book:
    """The accepted records of a Leadview, as the programs use them."""

    def __init__(self, leadview: Leadview) -> None:
        self.leadview = leadview
        self.settings = ProjectorSettings(
            redis_url=leadview.server.url,
            kafka_bootstrap_servers=leadview.kafka.bootstrap_servers,
            topic_prefix=leadview.prefix,
            group_id=leadview.group,
        )
        self.store = Store(self.settings)
        self.at = Partition(leadview.topics.name(resources.LEAD), 0)
        self.records = AcceptedRecords(self.settings, self.store)

    async def accept(self, offsets: str, note: str = "x") -> None:
        await self.records.change({self.at: Ranges.parse(offsets)}, lambda before, new: before.accept(new, 1, note))

    async def read(self) -> Accepted:
        return (await self.records.read([self.at]))[self.at]


@pytest.fixture
async def book(leadview: Leadview) -> AsyncIterator[Book]:
    book = Book(leadview)
    yield book
    await book.store.close()


@pytest.mark.apache
async def test_what_does_not_exist_is_refused(book: Book) -> None:
    book.leadview.publish(*(crm.lead(1) for _ in range(3)), partition=0)
    topic = book.at.topic
    for words, said in (
        ([f"{topic}:0:3"], f"{topic}:0:3 does not exist: the partition has no records after the offset 2."),
        ([f"{topic}:0:0-3"], "no records after the offset 2."),
        ([f"{topic}:2:0"], "the partition has no records."),
        ([f"{topic}:9:0"], f"The topic {topic} has no partition 9."),
        (["other.leads:0:0"], "other.leads is not a topic of Leadview. Its topics are"),
        ([f"{topic}:0:0", "other.leads:0:0"], "other.leads is not a topic"),
    ):
        offsets = by_partition(OffsetRange.parse(word) for word in words)
        with pytest.raises(Refused, match=re.escape(said)):
            await dead_letters.accept(book.store, book.settings, offsets, "x")
    with pytest.raises(Refused, match="is not a topic of Leadview"):
        await dead_letters.matching(book.store, book.settings, dead_letters.Filter(topic="other.leads"))
    assert not (await book.read()).offsets


@pytest.mark.apache
async def test_operators_at_the_same_time_lose_nothing(book: Book) -> None:
    await asyncio.gather(*(book.accept(f"{10 * number}", f"note {number}") for number in range(5)))
    found = await book.read()
    notes = sorted(acceptance.note for acceptance in found.acceptances)
    assert (str(found.offsets), notes) == ("0,10,20,30,40", [f"note {number}" for number in range(5)])


@pytest.mark.apache
async def test_list_that_kafka_cannot_store_is_refused(book: Book) -> None:
    other = Partition(book.at.topic, 1)
    many = Ranges.of((offset, offset) for offset in range(1_000_000, 1_001_200, 2))
    await book.accept("7")
    said = rf"[4-9],\d\d\d characters.* such as {book.at.topic}:0:1000000-1001198 {book.at.topic}:1:3\."
    with pytest.raises(Refused, match=said):
        await book.records.change({book.at: many, other: Ranges.parse("3")}, lambda a, new: a.accept(new, 1, "x"))
    found = await book.records.read([book.at, other])
    assert [str(found[at].offsets) for at in (book.at, other)] == ["7", ""], "nothing was changed"
    await book.accept("1000000-1001198")
    assert str((await book.read()).offsets) == "7,1000000-1001198"


@pytest.mark.apache
async def test_accepted_records_are_committed_again(book: Book) -> None:
    """Kafka forgets what is not committed for a week. A projector commits it again as soon as it starts."""
    await book.accept("7", "the note")
    before = await book.read()
    commits = _commits(book.leadview)
    await book.records.renew([book.at, Partition(book.at.topic, 1)])
    assert (_commits(book.leadview), await book.read()) == (commits + 1, before)
    book.leadview.start("run")
    await eventually(lambda: _commits(book.leadview) > commits + 1, "the projector commits them as well")
    assert await book.read() == before


def _commits(leadview: Leadview) -> int:
    topic, group = "__consumer_offsets", f"{leadview.group}.accepted".encode()
    partitions = leadview.topics.admin.list_topics(topic, PATIENCE_SECONDS).topics[topic].partitions
    settings = {"bootstrap.servers": leadview.kafka.bootstrap_servers, "group.id": "any", "enable.partition.eof": True}
    found, left = 0, len(partitions)
    with closing(Consumer(settings)) as consumer:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        while left:
            message: Any = consumer.poll(PATIENCE_SECONDS)
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                left -= 1
            else:
                found += group in message.key()
    return found


@pytest.mark.apache
async def test_topic_that_is_created_again_has_none(book: Book) -> None:
    """Its offsets belong to other records."""
    await book.accept("7")
    book.leadview.topics.recreate(resources.LEAD, 3)

    async def forgotten() -> bool:
        return not (await book.read()).offsets

    await eventually(forgotten, "Kafka has deleted them with the topic")


@pytest.mark.apache
async def test_text_of_another_program_is_left_alone(book: Book) -> None:
    texts = OffsetTexts(book.settings, f"{book.leadview.group}.accepted")
    assert await texts.write({book.at: OffsetAndMetadata(1, "not ours")})
    assert not (await book.read()).offsets
    with pytest.raises(Refused, match="was not written by this program"):
        await book.accept("7")


WRONG = {"first_name": 7}


@pytest.mark.parametrize(
    ("messages", "entities"),
    [
        pytest.param([crm.contact(5), crm.contact(6, **WRONG)], [crm.CONTACT], id="the newest record is bad"),
        pytest.param([crm.contact(6, **WRONG)], [crm.CONTACT], id="the only record is bad"),
        pytest.param([crm.deleted(resources.CONTACT, 5), crm.contact(6, **WRONG)], [crm.CONTACT], id="behind a delete"),
        pytest.param([crm.contact(6, **WRONG), crm.contact(7)], [], id="a newer one is good"),
        pytest.param([crm.contact(6, **WRONG), crm.contact(6)], [], id="it was corrected"),
        pytest.param([crm.contact(6, **WRONG), crm.contact(5)], [], id="an older one is the last one"),
        pytest.param([crm.contact(5), crm.api_key(6, status="WRONG")], [], id="that of access is another problem"),
    ],
)
async def test_status_names_documents_whose_newest_record_is_bad(
    leadview: Leadview, messages: list[Message], entities: list[str]
) -> None:
    leadview.serve(crm.organization(1), *messages)
    leadview.wait_until_current()
    status = orjson.loads(leadview.run("status", "--json").stdout)
    assert ("documents_as_before" in status["kinds"]) is bool(entities)
    assert all(id_ in status["verdict"] for id_ in entities)


@pytest.mark.parametrize(
    "repair",
    [
        pytest.param(("dead-letters", "accept", "--all", "--note", "known"), id="accepted"),
        pytest.param(("dead-letters", "drop", "--all"), id="dropped"),
        pytest.param(None, id="published again"),
    ],
)
def test_document_as_before_is_a_problem_until_somebody_has_dealt_with_it(
    leadview: Leadview, repair: tuple[str, ...] | None
) -> None:
    port = free_port()
    leadview.serve(crm.organization(1), crm.contact(5), crm.contact(6, **WRONG), metrics_port=port)
    leadview.wait_until_current()
    assert f"contact {crm.CONTACT}" in leadview.run("status")
    assert f"contact {crm.CONTACT}" in leadview.run("doctor").ends(1)
    wait_until(lambda: metric(port, "leadview_projector_documents_as_before") == 1, "the metric says so")
    if repair:
        assert leadview.run(*repair).status == 0
    else:
        leadview.publish(crm.contact(7))
        leadview.wait_until_current()
    wait_until(lambda: leadview.run("status").status == 0, "all is well")
