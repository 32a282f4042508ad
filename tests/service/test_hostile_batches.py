"""Nothing that is published can stop a projector, slow it or bloat it: a row for each way that once did.

Bad batches come between good ones, and an API key is revoked after them. The program lives, its memory stays within a
bound, what is good is applied, and each bad batch becomes a small dead letter that names the limit. What Apache Kafka
refuses to store is in `tests/unit/test_fetching.py` and `tests/fuzz/kafka.py`.
"""

import asyncio
import gzip
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest

from devstack.programs import while_running
from projector.dead_letter import DeadLetter
from schemas import names, resources
from tests.harness import crm, raw_batches, stored
from tests.harness.commands import Finished
from tests.harness.crm import Message
from tests.harness.leadview import Leadview
from tests.harness.projectors import MEASURED, peak_memory
from tests.harness.raw_batches import GZIP, LZ4, NONE, ZSTD, Header, batch
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

MAX_MEMORY = 300 * 1024 * 1024
"""Of a projector, at its peak. Without any records it has about 90 MB."""
MAX_DEAD_LETTER = 4096
MEGA = 1_000_000
_PARTITIONS = 24
"""So many that a decompressed batch of each, or a fetched one, would exceed the bound."""

pytestmark = pytest.mark.apache


class Attack:
    """A projector that runs, and what is published to it. Everything goes to one partition, so it is read in order."""

    def __init__(self, leadview: Leadview) -> None:
        self.leadview = leadview
        leadview.publish(crm.organization(), crm.api_key(), partition=0)
        self.publish_good(1)
        self.start()
        leadview.wait_until_served()
        assert set(stored.key_expiries(leadview.redis).values()) == {0}

    def publish_good(self, version: int) -> None:
        lead = crm.lead(version, referrer=f"version {version}")
        self.leadview.publish(lead, crm.contact(version, first_name=f"version {version}"), partition=0)

    def publish(self, data: bytes, kind: resources.Kind = resources.LEAD, records: int = 1, partition: int = 0) -> None:
        topics = self.leadview.topics
        at = topics.name(kind), partition
        publish(self.leadview, at, data)
        topics.end_offsets[at] = topics.end_offsets.get(at, 0) + records

    def expect(self, messages: Sequence[Message], offset: int = 100) -> None:
        """These messages were published in a batch, and are good."""
        for message in messages:
            self.leadview.topics.reference.add(message.record(offset))

    def withstand(self, rows: "Mapping[str, Hostile]") -> None:
        """Publish all of these batches. Fails unless the program lives, and each batch left what its row says."""
        places = {}
        for name, row in rows.items():
            topic = self.leadview.topics.name(row.kind)
            first = self.leadview.topics.end_offsets.get((topic, 0), 0)
            self.publish(row.data, row.kind, row.records)
            places[name] = [names.dead_letter(topic, 0, first + number) for number in range(row.records)]
            self.expect(row.good, first)
        self.assert_survived()
        letters = self.letters()
        for name, row in rows.items():
            reasons = [letters.pop(place).reason for place in places[name] if place in letters]
            assert [row.reason in reason for reason in reasons] == [True] * row.number, (name, reasons)
        assert not letters

    def start(self) -> None:
        self.child = self.leadview.start("run")

    def assert_survived(self) -> None:
        """The good records after the bad ones are applied, in each topic, and so is a revocation."""
        self.publish_good(2)
        self.leadview.publish(crm.api_key(2, status="revoked"), partition=0)
        wait_until(while_running(self.child, lambda: self.leadview.behind() == 0), "all is read", 2 * PATIENCE_SECONDS)
        assert self.leadview.documents() == self.leadview.expected()
        assert set(stored.key_expiries(self.leadview.redis).values()) == {1}
        self.child.check_running()
        assert peak_memory(self.child.pid) < MAX_MEMORY

    def letters(self) -> dict[str, DeadLetter]:
        """Returns the dead letters by their places. Each is small."""
        letters: dict[bytes, bytes] = self.leadview.redis.hgetall(names.DEAD_LETTERS)
        assert all(len(letter) < MAX_DEAD_LETTER for letter in letters.values())
        return {at.decode(): msgspec.json.decode(letter, type=DeadLetter) for at, letter in letters.items()}


def publish(leadview: Leadview, at: tuple[str, int], data: bytes) -> None:
    def is_taken() -> bool:
        return asyncio.run(raw_batches.publish(leadview.kafka.bootstrap_servers, *at, data)) == 0

    wait_until(is_taken, "the broker has taken the batch")


@pytest.fixture
def attack(leadview: Leadview) -> Attack:
    return Attack(leadview)


def record(message: Message, headers: tuple[Header, ...] = (), offset: int = 0) -> bytes:
    return raw_batches.record(offset, message.key, message.value, headers)


class Hostile(NamedTuple):
    """A batch, and what it leaves: a number of dead letters whose reason contains a text, and good records."""

    data: bytes
    reason: str = ""
    number: int = 1
    records: int = 1
    kind: resources.Kind = resources.LEAD
    good: Sequence[Message] = ()


def packed(message: Message, text: bytes, codec: int = NONE) -> bytes:
    """Returns a batch of a message with these bytes of JSON in place of "PLACE"."""
    value = (message.value or b"").replace(b'"PLACE"', text)
    return batch([record(msgspec.structs.replace(message, value=value))], codec=codec)


def of_text(megabytes: int) -> bytes:
    return packed(crm.lead(2, id=crm.uuid(0x79), referrer="PLACE"), b'"%b"' % (b"x" * megabytes * MEGA), LZ4)


def of_key(megabytes: int, codec: int = ZSTD) -> bytes:
    return batch([raw_batches.record(0, b"k" * megabytes * MEGA, b"{}")], codec=codec)


def of_many(megabytes: int, text: bytes, codec: int, **fields: Any) -> bytes:
    """Returns a batch of a lead with so many megabytes of short texts, which hardly take any space in the codec."""
    many = b"[%b]" % b",".join([text] * (megabytes * MEGA // len(text)))
    return packed(crm.lead(2, id=crm.uuid(0x79), **fields), many, codec)


LEAD, CONTACT, KEY, ORGANIZATION = resources.LEAD, resources.CONTACT, resources.API_KEY, resources.ORGANIZATION
BINARY, FIRST = crm.lead(id=crm.uuid(0x77), referrer="binary"), crm.lead(id=crm.uuid(0x78))
NO_TYPE = tuple((name.encode(), None if name == "content-type" else of) for name, of in crm.binary(BINARY).headers)
BAD_ID = crm.uuid(0x7A)
"""Nothing newer is applied of it, so its dead letters stay."""
BAD = msgspec.structs.replace(crm.lead(id=BAD_ID), value=b"{")
MEMBERS = [crm.lead(id=crm.uuid(number), referrer="in a member of its own") for number in (0x7B, 0x7C)]
NOT_UTF_8 = batch([record(BAD, ((b"\xff\xfe", b"x"),), offset) for offset in range(3)])
DIGITS = b"9" * 4300
TOO_LARGE, NOT_IN_ORDER = "has more than 16,777,216 bytes", "the offsets of its records are not in order"
EVENT, EMPTY = b'{"id":"%b"}' % crm.uuid(1).encode(), b'{"a":[]}'


def in_members(messages: Sequence[Message]) -> bytes:
    """Returns a batch of gzip, in which each message has a member of its own: Kafka reads all of them."""
    records = [record(message, offset=number) for number, message in enumerate(messages)]
    return batch(records, codec=GZIP, compressed=b"".join(map(gzip.compress, records)))


def of_any_producer() -> dict[str, Hostile]:
    in_lead = crm.lead(2, id=BAD_ID, attribution={"a": "PLACE"})
    in_contact = crm.contact(2, id=BAD_ID, custom_fields={"a": "PLACE"})
    return {
        "no content type": Hostile(batch([record(crm.binary(BINARY), NO_TYPE)]), number=0, good=[BINARY]),
        "a name of a header": Hostile(NOT_UTF_8, "", 3, 3),
        "a name of a header of a key": Hostile(NOT_UTF_8, "", 3, 3, KEY),
        "twice": Hostile(batch([record(FIRST, offset=at) for at in (0, 0, 2)]), NOT_IN_ORDER, records=3, good=[FIRST]),
        "members of gzip": Hostile(in_members(MEMBERS), number=0, records=2, good=MEMBERS),
        "behind": Hostile(batch([record(FIRST, offset=at) for at in (0, 99)]), NOT_IN_ORDER, records=2, good=[FIRST]),
        "a key of 20 MB": Hostile(of_key(20), TOO_LARGE),
        "a key of 110 MB": Hostile(of_key(110), TOO_LARGE, kind=ORGANIZATION),
        "a key of 15 MB": Hostile(of_key(15, GZIP), "the message key has 15,000,000 bytes, more than 200"),
        "a lead of 17 MB": Hostile(of_text(17), TOO_LARGE),
        "a lead of 12 MB": Hostile(of_text(12), "the value has 12,000,"),
        "events, LZ4": Hostile(of_many(100, EVENT, LZ4, events="PLACE"), TOO_LARGE),
        "events, ZSTD": Hostile(of_many(100, EVENT, ZSTD, events="PLACE"), TOO_LARGE),
        "attribution": Hostile(of_many(50, EMPTY, ZSTD, attribution={"a": "PLACE"}), TOO_LARGE),
        "digits in a contact": Hostile(packed(in_contact, DIGITS), "$.data.custom_fields", kind=CONTACT),
        "digits in a lead": Hostile(packed(in_lead, DIGITS), "$.data.attribution"),
    }


def test_hostile_records_of_any_producer_leave_documents_valid(attack: Attack) -> None:
    """Contacts change afterwards, and the leads are still valid JSON: they were cut at places of three bytes."""
    attack.withstand(of_any_producer())


def peak_of(measured: Finished) -> int:
    [peak] = re.findall(r"^peak (\d+)$", measured.stdout, re.MULTILINE)
    return int(peak)


@pytest.mark.long
def test_records_of_the_largest_size_take_bounded_memory(attack: Attack) -> None:
    """100 MB of good leads in batches of a few kilobytes: memory is bounded by bytes, not by the number of records.

    So it is in a rebuild, and while they are compared.
    """
    text = "x" * 900_000
    for number in range(11):
        leads = [crm.lead(1, id=crm.uuid(0x1000 + 10 * number + n), referrer=text) for n in range(10)]
        attack.publish(batch([record(lead, offset=n) for n, lead in enumerate(leads)], codec=ZSTD), records=10)
        attack.expect(leads)
    attack.assert_survived()
    assert attack.letters() == {}
    for words in (("rebuild", "--max-latency", "0"), ("verify",)):
        done = attack.leadview.run(*words, command=MEASURED).ends(0)
        assert peak_of(done) < MAX_MEMORY, words


@pytest.mark.long
def test_first_records_of_many_partitions_take_bounded_memory(leadview: Leadview) -> None:
    """To know since when they wait, one batch is decompressed at a time, whatever the number of partitions."""
    deletions = [raw_batches.record(n, b"%b:%d" % (crm.uuid(1).encode(), n), None) for n in range(300_000)]
    data = batch(deletions, codec=ZSTD)
    leadview.topics.add_partitions(resources.LEAD, _PARTITIONS)
    for number in range(_PARTITIONS):
        publish(leadview, (leadview.topics.name(resources.LEAD), number), data)
    done = leadview.ask("status", command=MEASURED)
    assert f"{_PARTITIONS * 300_000:,}" in done, done.output
    assert peak_of(done) < MAX_MEMORY


@pytest.mark.long
@pytest.mark.parametrize(
    ("codec", "partitions", "batches", "leads"),
    [
        pytest.param(ZSTD, _PARTITIONS, 1, 15, id="compressed"),
        pytest.param(NONE, 80, 4, 1, id="not compressed"),
    ],
)
def test_many_large_batches_wait(attack: Attack, codec: int, partitions: int, batches: int, leads: int) -> None:
    """It neither fetches nor unpacks ahead what it has no place for, and forgets at once what it has read."""
    attack.child.stop()
    messages = [crm.lead(1, id=crm.uuid(0x1000 + n), referrer="x" * 900_000) for n in range(leads)]
    data = batch([record(message, offset=n) for n, message in enumerate(messages)], codec=codec)
    attack.leadview.topics.add_partitions(resources.LEAD, partitions)
    for number in range(batches * partitions):
        attack.publish(data, records=leads, partition=number % partitions)
    attack.expect(messages)
    attack.start()
    attack.assert_survived()
    assert attack.letters() == {}
