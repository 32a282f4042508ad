"""Known bad records: once an operator has accepted them, they halt no line again, and new ones still do."""

import asyncio
import re
import shlex
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import orjson
import pytest
from aiokafka.structs import OffsetAndMetadata
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from devstack.ports import free_port
from projector.errors import Refused
from projector.kafka.accepted import Accepted, AcceptedRecords, write_texts
from projector.offsets import OffsetRange, Ranges, by_partition
from projector.record import Partition, Record
from projector.redis.store import Store
from projector.upkeep import dead_letters
from schemas import resources
from schemas.settings import ProjectorSettings
from tests.harness import crm
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import ask, metric
from tests.harness.waiting import PATIENCE_SECONDS, eventually, wait_until

pytestmark = pytest.mark.apache

ROW = 5
COMMAND = re.compile(r"python -m projector (dead-letters accept .+)$")


def publish_bad(leadview: Leadview, count: int) -> list[Record]:
    """Publish bad records to partition 0 of the leads, each of a lead of its own."""
    leads = [crm.lead(1, id=crm.uuid(0xBAD000 + number)) for number in range(count)]
    return leadview.publish(*(msgspec.structs.replace(lead, value=b"{") for lead in leads), partition=0)


def range_of(records: list[Record]) -> str:
    first, last = records[0], records[-1]
    return f"{first.topic}:{first.partition}:{first.offset}-{last.offset}"


def letters(leadview: Leadview) -> list[Any]:
    """Returns the dead letters, as `list --json` prints them."""
    found: list[Any] = orjson.loads(leadview.run("dead-letters", "list", "--json").stdout)
    return found


def problem(port: int) -> str:
    """Returns why the line is halted; an empty text if it is not."""
    status, body = ask(port, "/healthz")
    return str(body["problems"][0]) if status == 503 else ""


def wait_until_halted(port: int) -> str:
    """Returns the problem."""
    wait_until(lambda: "consecutive bad records" in problem(port), "the line is halted")
    return problem(port)


def advised(message: str) -> list[str]:
    """Returns the words of the command that a message tells the operator to paste."""
    found = COMMAND.search(message)
    assert found, message
    return shlex.split(found[1])


def test_a_halted_line_resumes_and_a_refill_passes(leadview: Leadview) -> None:
    port = free_port()
    leadview.publish(crm.lead(1), partition=0)
    known = publish_bad(leadview, 8)
    leadview.publish(crm.lead(2), partition=0)
    projector = leadview.start("run", metrics_port=port, dead_letter_row=ROW)

    words = advised(wait_until_halted(port))
    assert words == ["dead-letters", "accept", range_of(known), "--note", "why"]
    assert metric(port, "leadview_projector_line_stopped") == 1
    wait_until(lambda: range_of(known) in projector.log.read_text(), "the log names them as well")
    assert letters(leadview) == [], "nothing was skipped"
    words[-1] = "an import of 2024"
    accepted = leadview.run(*words)
    assert f"{range_of(known)}  accepted" in accepted
    wait_until(leadview.is_current, "the line resumes without a restart")
    wait_until(lambda: ask(port, "/healthz")[0] == 200, "it is healthy")
    assert metric(port, "leadview_projector_line_stopped") == 0
    assert leadview.documents() == leadview.expected()
    _assert_accepted(leadview, known, "an import of 2024")

    leadview.wait_until_served()
    leadview.redis.flushall()
    leadview.wait_until_served()
    assert problem(port) == ""
    _assert_accepted(leadview, known, "an import of 2024")
    shown = leadview.run("dead-letters", "show", f"{known[0].topic}:0:{known[0].offset}")
    assert re.search(r"  accepted  20\S+Z  an import of 2024\n", shown.stdout)

    new = publish_bad(leadview, ROW)
    assert advised(wait_until_halted(port))[2] == range_of(new), "it halts on the new ones only"


def _assert_accepted(leadview: Leadview, records: list[Record], note: str) -> None:
    found = letters(leadview)
    assert [letter["offset"] for letter in found] == [record.offset for record in records]
    for letter in found:
        assert (letter["accepted"], letter["note"]) == (True, note)
        assert letter["accepted_at"] > 1_700_000_000_000
    assert f"accepted: {note}" in leadview.run("dead-letters", "list")


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


async def test_what_does_not_exist_is_refused(book: Book) -> None:
    publish_bad(book.leadview, 3)
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


async def test_operators_at_the_same_time_lose_nothing(book: Book) -> None:
    await asyncio.gather(*(book.accept(f"{10 * number}", f"note {number}") for number in range(5)))
    found = await book.read()
    assert str(found.offsets) == "0,10,20,30,40"
    assert sorted(acceptance.note for acceptance in found.acceptances) == [f"note {number}" for number in range(5)]


async def test_a_list_that_kafka_cannot_store_is_refused(book: Book) -> None:
    other = Partition(book.at.topic, 1)
    many = Ranges.of((offset, offset) for offset in range(1_000_000, 1_001_200, 2))
    await book.accept("7")
    said = rf"[4-9],\d\d\d characters.* such as {book.at.topic}:0:1000000-1001198 {book.at.topic}:1:3\."
    with pytest.raises(Refused, match=said):
        await book.records.change({book.at: many, other: Ranges.parse("3")}, lambda a, new: a.accept(new, 1, "x"))
    found = await book.records.read([book.at, other])
    assert str(found[book.at].offsets) == "7"
    assert not found[other].offsets, "nothing was changed"
    await book.accept("1000000-1001198")
    assert str((await book.read()).offsets) == "7,1000000-1001198"


async def test_they_are_committed_again(book: Book) -> None:
    """Kafka forgets what is not committed for a week. A projector commits it again as soon as it starts."""
    await book.accept("7", "the note")
    before = await book.read()
    commits = _commits(book.leadview)
    await book.records.renew([book.at, Partition(book.at.topic, 1)])
    assert _commits(book.leadview) == commits + 1
    assert await book.read() == before
    book.leadview.start("run")
    await eventually(lambda: _commits(book.leadview) > commits + 1, "the projector commits them as well")
    assert await book.read() == before


def _commits(leadview: Leadview) -> int:
    """Returns how many offsets were committed for the accepted records of this Leadview so far."""
    topic, group = "__consumer_offsets", f"{leadview.group}.accepted".encode()
    partitions = leadview.topics.admin.list_topics(topic, PATIENCE_SECONDS).topics[topic].partitions
    settings = {"bootstrap.servers": leadview.kafka.bootstrap_servers, "group.id": "any", "enable.partition.eof": True}
    consumer = Consumer(settings)
    try:
        consumer.assign([TopicPartition(topic, number, OFFSET_BEGINNING) for number in partitions])
        found, left = 0, len(partitions)
        while left:
            message: Any = consumer.poll(PATIENCE_SECONDS)
            if message.error():
                assert message.error().code() == KafkaError._PARTITION_EOF, message.error()
                left -= 1
            else:
                found += group in message.key()
    finally:
        consumer.close()
    return found


async def test_a_topic_that_is_created_again_has_none(book: Book) -> None:
    """Its offsets belong to other records."""
    await book.accept("7")
    book.leadview.topics.recreate(resources.LEAD, 3)

    async def forgotten() -> bool:
        return not (await book.read()).offsets

    await eventually(forgotten, "Kafka has deleted them with the topic")


async def test_a_text_of_another_program_is_left_alone(book: Book) -> None:
    group = f"{book.leadview.group}.accepted"
    assert await write_texts(book.settings, group, {book.at: OffsetAndMetadata(1, "not ours")})
    assert not (await book.read()).offsets
    with pytest.raises(Refused, match="was not written by this program"):
        await book.accept("7")
