"""Known bad records: once an operator has accepted them, they halt no line again, and new ones still do."""

import asyncio
import re
import shlex
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import orjson
import pytest
from aiokafka.structs import OffsetAndMetadata
from confluent_kafka import TopicPartition
from confluent_kafka.admin._listoffsets import OffsetSpec

from devstack.embedded_kafka import EmbeddedKafka
from devstack.ports import free_port
from projector.errors import Refused
from projector.kafka.accepted import Accepted, AcceptedRecords, write_texts
from projector.offsets import Ranges
from projector.record import Partition, Record
from projector.redis.store import Store
from schemas import resources
from schemas.settings import ProjectorSettings
from tests.harness import crm
from tests.harness.crm import Message
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import ask, metric
from tests.harness.services import Kafka, RedisService
from tests.harness.waiting import PATIENCE_SECONDS, eventually, wait_until
from tests.service.conftest import new_leadview

ROW = 5
COMMAND = re.compile(r"python -m projector (dead-letters accept .+)$")


@pytest.fixture(
    params=[
        pytest.param("apache", marks=pytest.mark.apache),
        pytest.param("embedded", id="embedded", marks=pytest.mark.long),
    ],
)
def any_leadview(
    request: pytest.FixtureRequest, redis_server: RedisService, topic_prefix: str, tmp_path: Path
) -> Iterator[Leadview]:
    """A Leadview on Apache Kafka, and one on the embedded broker."""
    with ExitStack() as stack:
        if request.param == "apache":
            kafka = request.getfixturevalue("kafka")
        else:
            embedded = stack.enter_context(EmbeddedKafka.start(tmp_path / "kafka"))
            kafka = Kafka("embedded", embedded.bootstrap_servers, embedded.create_topic)
        yield stack.enter_context(new_leadview(kafka, topic_prefix, redis_server, tmp_path))


def bad(count: int, value: bytes = b"{") -> list[Message]:
    """Returns bad records, each of a lead of its own."""
    return [
        msgspec.structs.replace(crm.lead(1, id=crm.uuid(0xBAD000 + number)), value=value) for number in range(count)
    ]


def publish_bad(leadview: Leadview, count: int, value: bytes = b"{") -> list[Record]:
    """Publish bad records to partition 0 of the leads, one after the other."""
    return leadview.publish(*bad(count, value), partition=0)


def range_of(records: list[Record]) -> str:
    first, last = records[0], records[-1]
    return f"{first.topic}:{first.partition}:{first.offset}-{last.offset}"


def letters(leadview: Leadview) -> dict[int, Any]:
    """Returns the dead letters of partition 0, as `list --json` prints them, by offset."""
    found = orjson.loads(leadview.run("dead-letters", "list", "--json").stdout)
    return {letter["offset"]: letter for letter in found}


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


def test_a_halted_line_resumes_and_a_refill_passes(any_leadview: Leadview) -> None:
    leadview, port = any_leadview, free_port()
    leadview.publish(crm.lead(1), partition=0)
    known = publish_bad(leadview, 8)
    leadview.publish(crm.lead(2), partition=0)
    projector = leadview.start("run", metrics_port=port, dead_letter_row=ROW)

    words = advised(wait_until_halted(port))
    assert words == ["dead-letters", "accept", range_of(known), "--note", "why"]
    assert metric(port, "leadview_projector_line_stopped") == 1
    wait_until(lambda: range_of(known) in projector.log.read_text(), "the log names them as well")
    assert letters(leadview) == {}, "nothing was skipped"
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
    assert advised(wait_until_halted(port))[2] == range_of(new)
    projector.stop()
    leadview.redis.flushall()
    leadview.start("run", metrics_port=port, dead_letter_row=ROW)
    assert advised(wait_until_halted(port))[2] == range_of(new), "a refill halts on the new ones only"


def _assert_accepted(leadview: Leadview, records: list[Record], note: str) -> None:
    found = letters(leadview)
    assert list(found) == [record.offset for record in records]
    for letter in found.values():
        assert (letter["accepted"], letter["note"]) == (True, note)
        assert letter["accepted_at"] > 1_700_000_000_000
    assert f"accepted: {note}" in leadview.run("dead-letters", "list")


def test_what_is_dropped_is_not_stored_again(any_leadview: Leadview) -> None:
    leadview = any_leadview
    known = publish_bad(leadview, 8)
    leadview.publish(crm.lead(1), partition=0)
    leadview.start("run")
    leadview.wait_until_served()
    topic = known[0].topic
    assert leadview.run("dead-letters", "accept", f"{topic}:0:2-7", "--note", "x").status == 0
    assert leadview.run("dead-letters", "drop", f"{topic}:0:1", f"{topic}:0:4-6").stdout == "4 dropped\n"
    assert list(letters(leadview)) == [0, 2, 3, 7]

    leadview.redis.flushall()
    leadview.wait_until_served()
    accepted = {offset: letter["accepted"] for offset, letter in letters(leadview).items()}
    assert accepted == {0: False, 1: False, 2: True, 3: True, 7: True}, "1 was not accepted: it is stored again"
    gone = leadview.run("dead-letters", "drop", f"{topic}:0:4-6")
    assert gone.status == 1
    assert f"There is no dead letter {topic}:0:4-6." in gone


def test_by_topic_and_by_reason(any_leadview: Leadview) -> None:
    leadview, port = any_leadview, free_port()
    stage = (crm.lead(1).value or b"").replace(b'"NEW"', b'"OLD"')
    staged = [publish_bad(leadview, 1, stage)[0].offset for _ in range(2)]
    broken = [record.offset for record in publish_bad(leadview, 2)]
    leadview.publish(*bad(1), partition=1)
    contact = leadview.publish(msgspec.structs.replace(crm.contact(1), value=b"{"), partition=2)[0]
    leadview.start("run", metrics_port=port)
    leadview.wait_until_served()

    topic = leadview.topics.name(resources.LEAD)
    none = leadview.run("dead-letters", "accept", "--reason", "no such reason", "--note", "x")
    assert none.status == 1
    assert "No dead letter matches" in none
    done = leadview.run("dead-letters", "accept", "--topic", topic, "--reason", "data.stage", "--note", "old stages")
    assert f"{topic}:0:{staged[0]}-{staged[-1]}  accepted" in done
    assert _notes(leadview) == {(topic, 0, offset): "old stages" for offset in staged}
    done = leadview.run("dead-letters", "accept", "--topic", topic, "--note", "all")
    assert "Dead letters among them: 5" in done
    notes = {(topic, 0, offset): "all" for offset in staged + broken} | {(topic, 1, 0): "all"}
    assert _notes(leadview) == notes
    assert leadview.run("dead-letters", "accept", "--reason", "", "--note", "x").status == 2
    assert leadview.run("dead-letters", "accept", f"{contact.topic}:2:0", "--note", "one").status == 0
    assert _notes(leadview) == notes | {(contact.topic, 2, 0): "one"}

    leadview.redis.flushall()
    leadview.wait_until_served()
    assert _notes(leadview) == notes | {(contact.topic, 2, 0): "one"}


def _notes(leadview: Leadview) -> dict[tuple[str, int, int], str]:
    """Returns the notes of all accepted dead letters."""
    found = orjson.loads(leadview.run("dead-letters", "list", "--json").stdout)
    return {
        (letter["topic"], letter["partition"], letter["offset"]): letter["note"]
        for letter in found
        if letter["accepted"]
    }


@pytest.mark.apache
def test_a_rebuild_passes(leadview: Leadview) -> None:
    leadview.publish(crm.lead(1), crm.contact(1))
    known = publish_bad(leadview, 8)
    leadview.start("run")  # its limits let all of them through
    leadview.wait_until_served()
    halted = leadview.run("rebuild", "--max-latency", "0", dead_letter_row=ROW)
    assert halted.status == 1
    assert "LineStopped: 5 consecutive bad records" in halted.stderr
    words = advised(halted.stderr.strip().splitlines()[-1])
    assert words[2] == range_of(known)
    assert leadview.run(*words).status == 0
    resumed = leadview.run("rebuild", "--promote", "--max-latency", "0", dead_letter_row=ROW)
    assert "generation 2 is served" in resumed, resumed.output

    new = publish_bad(leadview, ROW)
    wait_until(leadview.is_current, "the live line lets them through")
    assert leadview.run("drop", "1").status == 0
    halted = leadview.run("rebuild", "--max-latency", "0", dead_letter_row=ROW)
    assert advised(halted.stderr.strip().splitlines()[-1])[2] == range_of(new), "it halts on the new ones only"


def test_the_line_of_access_records_resumes(any_leadview: Leadview) -> None:
    leadview, port = any_leadview, free_port()
    keys = [msgspec.structs.replace(crm.api_key(1, id=crm.uuid(number)), value=b"{") for number in range(ROW)]
    known = leadview.publish(*keys, partition=1)
    leadview.start("run", metrics_port=port, dead_letter_row=ROW)
    assert leadview.run(*advised(wait_until_halted(port))).status == 0
    wait_until(leadview.is_current, "the line resumes")
    assert list(letters(leadview)) == [record.offset for record in known]


def test_another_acceptance_does_not_let_it_pass(any_leadview: Leadview) -> None:
    """Whoever accepts one of the records has not accepted the others."""
    leadview, port = any_leadview, free_port()
    known = publish_bad(leadview, ROW + 1)
    leadview.start("run", metrics_port=port, dead_letter_row=ROW)
    wait_until_halted(port)
    topic = known[0].topic
    assert leadview.run("dead-letters", "accept", f"{topic}:0:0", "--note", "one").status == 0
    wait_until(lambda: f"{topic}:0:1-{ROW}" in problem(port), "it halts again, because of the others")
    assert leadview.run("dead-letters", "accept", f"{topic}:0:{ROW}", "--note", "one").status == 0
    wait_until(leadview.is_current, "four in a row are allowed")
    accepted = {offset: letter["accepted"] for offset, letter in letters(leadview).items()}
    assert accepted == {offset: offset in (0, ROW) for offset in range(ROW + 1)}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["{topic}:0:3"], "{topic}:0:3 does not exist: the partition has no records after the", id="one"),
        pytest.param(["{topic}:0:0-3"], "no records after the offset 2.", id="a range beyond the end"),
        pytest.param(["{topic}:2:0"], "the partition has no records.", id="an empty partition"),
        pytest.param(["{topic}:9:0"], "The topic {topic} has no partition 9.", id="a partition"),
        pytest.param(["other.leads:0:0"], "other.leads is not a topic of Leadview. Its topics are", id="a topic"),
        pytest.param(["{topic}:0:0", "other.leads:0:0"], "other.leads is not a topic", id="one of several"),
        pytest.param(["--topic", "other.leads"], "other.leads is not a topic of Leadview", id="the topic of all"),
        pytest.param(["--topic", "{topic}"], "No dead letter matches", id="no dead letters"),
    ],
)
def test_refused(leadview: Leadview, words: list[str], said: str) -> None:
    publish_bad(leadview, 3)
    topic = leadview.topics.name(resources.LEAD)
    words = [word.format(topic=topic) for word in words]
    refused = leadview.run("dead-letters", "accept", *words, "--note", "x")
    assert refused.status == 1
    assert said.format(topic=topic) in refused.stderr
    assert not leadview.topics.committed(f"{leadview.group}.accepted")


def test_a_note_is_required(leadview: Leadview) -> None:
    publish_bad(leadview, 1)
    refused = leadview.run("dead-letters", "accept", f"{leadview.topics.name(resources.LEAD)}:0:0")
    assert refused.status == 2
    assert "required: --note" in refused.stderr


class _Stored:
    """Where the accepted records of a Leadview are stored, as the programs use it."""

    def __init__(self, leadview: Leadview) -> None:
        self.settings = ProjectorSettings(
            redis_url=leadview.server.url,
            kafka_bootstrap_servers=leadview.kafka.bootstrap_servers,
            topic_prefix=leadview.prefix,
            group_id=leadview.group,
        )
        self._store = Store(self.settings)
        self.at = Partition(leadview.topics.name(resources.LEAD), 0)
        self.book = AcceptedRecords(self.settings, self._store)

    async def accept(self, offsets: str, note: str = "x") -> None:
        await self.book.change({self.at: Ranges.parse(offsets)}, lambda before, new: before.accept(new, 1, note))

    async def read(self) -> Accepted:
        return (await self.book.read([self.at]))[self.at]

    async def close(self) -> None:
        await self._store.close()


@pytest.fixture
async def stored(any_leadview: Leadview) -> AsyncIterator[_Stored]:
    stored = _Stored(any_leadview)
    yield stored
    await stored.close()


async def test_a_running_line_knows_what_was_accepted_meanwhile(stored: _Stored, any_leadview: Leadview) -> None:
    """It has read what is accepted before, when there was nothing."""
    leadview = any_leadview
    publish_bad(leadview, 1)
    leadview.start("run")
    await eventually(leadview.is_current, "the line is running")
    await stored.accept("1-3", "the note")  # before these records exist, so that it is before they are read
    await stored.book.change({stored.at: Ranges.parse("2")}, Accepted.drop)
    publish_bad(leadview, 4)
    await eventually(leadview.is_current, "they are read")
    assert {offset: letter["note"] for offset, letter in letters(leadview).items()} == {
        **dict.fromkeys((0, 4), ""),
        **dict.fromkeys((1, 3), "the note"),
    }


async def test_operators_at_the_same_time_lose_nothing(stored: _Stored) -> None:
    await asyncio.gather(*(stored.accept(f"{10 * number}", f"note {number}") for number in range(5)))
    found = await stored.read()
    assert str(found.offsets) == "0,10,20,30,40"
    assert sorted(acceptance.note for acceptance in found.acceptances) == [f"note {number}" for number in range(5)]


@pytest.mark.apache
async def test_a_list_that_kafka_cannot_store_is_refused(leadview: Leadview) -> None:
    stored = _Stored(leadview)
    other = Partition(stored.at.topic, 1)
    many = Ranges.of((offset, offset) for offset in range(1_000_000, 1_001_200, 2))
    await stored.accept("7")
    with pytest.raises(Refused, match=rf"such as {stored.at.topic}:0:1000000-1001198 {stored.at.topic}:1:3\."):
        await stored.book.change({stored.at: many, other: Ranges.parse("3")}, lambda a, new: a.accept(new, 1, "x"))
    found = await stored.book.read([stored.at, other])
    assert str(found[stored.at].offsets) == "7"
    assert not found[other].offsets, "nothing was changed"
    await stored.accept("1000000-1001198")
    assert str((await stored.read()).offsets) == "7,1000000-1001198"
    await stored.close()


@pytest.mark.apache
async def test_they_are_committed_again(leadview: Leadview) -> None:
    """Kafka forgets what is not committed for a week. A projector commits it again as soon as it starts."""
    stored = _Stored(leadview)
    await stored.accept("7", "the note")
    before = await stored.read()
    commits = _commits(leadview)
    await stored.book.renew([stored.at, Partition(stored.at.topic, 1)])
    assert _commits(leadview) == commits + 1
    assert await stored.read() == before
    leadview.start("run")
    await eventually(lambda: _commits(leadview) > commits + 1, "the projector commits them as well")
    assert await stored.read() == before
    await stored.close()


def _commits(leadview: Leadview) -> int:
    """Returns how many offsets were committed to this Kafka so far, by anyone."""
    topic = "__consumer_offsets"
    partitions = leadview.topics.admin.list_topics(topic, PATIENCE_SECONDS).topics[topic].partitions
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    asked = leadview.topics.admin.list_offsets({TopicPartition(topic, number): latest for number in partitions})
    return sum(found.result(PATIENCE_SECONDS).offset for found in asked.values())


@pytest.mark.apache
async def test_a_topic_that_is_created_again_has_none(leadview: Leadview) -> None:
    """Its offsets belong to other records."""
    stored = _Stored(leadview)
    await stored.accept("7")
    leadview.topics.recreate(resources.LEAD, 3)

    async def forgotten() -> bool:
        return not (await stored.read()).offsets

    await eventually(forgotten, "Kafka has deleted them with the topic")
    await stored.close()


@pytest.mark.apache
def test_a_running_line_forgets_what_was_accepted_in_a_topic_that_is_created_again(leadview: Leadview) -> None:
    [known] = publish_bad(leadview, 1)
    leadview.start("run")
    wait_until(leadview.is_current, "the record is parked")
    assert leadview.run("dead-letters", "accept", f"{known.topic}:0:0", "--note", "known").status == 0
    publish_bad(leadview, 1)
    wait_until(leadview.is_current, "the line has looked what is accepted")
    assert letters(leadview)[0]["accepted"]
    leadview.topics.recreate(resources.LEAD, 3)
    publish_bad(leadview, 1)
    wait_until(lambda: not letters(leadview)[0]["accepted"], "another record is parked, which nobody has accepted")


async def test_a_text_of_another_program_is_left_alone(stored: _Stored, any_leadview: Leadview) -> None:
    group = f"{any_leadview.group}.accepted"
    assert await write_texts(stored.settings, group, {stored.at: OffsetAndMetadata(1, "not ours")})
    assert not (await stored.read()).offsets
    with pytest.raises(Refused, match="was not written by this program"):
        await stored.accept("7")
