"""Nothing that is published can stop a projector, slow it or bloat it: a row for each way that once did.

Bad batches come between good ones, and an API key is revoked after them. The program lives, its memory stays within a
bound, what is good is applied, and each bad batch becomes a small dead letter that names the limit. Apache Kafka
refuses some of these batches, so they are published to the embedded one, which stores whatever it gets.
"""

import asyncio
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import orjson
import pytest

from devstack.child import Child
from devstack.embedded_kafka import EmbeddedKafka
from devstack.ports import free_port
from devstack.programs import while_running
from projector.dead_letter import DeadLetter
from projector.kafka.fetching import LONGEST_SECONDS
from schemas import api_keys, names, resources
from schemas.heartbeat import SILENT_MS
from tests.harness import crm, raw_batches, stored
from tests.harness.api_server import LEADS
from tests.harness.crm import Message
from tests.harness.leadview import Leadview
from tests.harness.measured import peak_memory
from tests.harness.metrics_port import ask
from tests.harness.raw_batches import GZIP, LZ4, NONE, SNAPPY, ZSTD, Header, batch
from tests.harness.services import Kafka, RedisService
from tests.harness.slices import TIMES
from tests.harness.waiting import PATIENCE_SECONDS, Stopwatch, wait_until
from tests.harness.worst_inputs import OF_RECORDS
from tests.service.conftest import new_leadview

MAX_MEMORY = 300 * 1024 * 1024
"""Of a projector, at its peak. Without any records it has about 90 MB."""
MAX_DEAD_LETTER = 4096
MEASURED = (sys.executable, "-m", "tests.harness.measured")
SLICES = (sys.executable, "-m", "tests.harness.slices")
MEGA = 1_000_000
_PARTITIONS = 24
"""So many that a decompressed batch of each, or a fetched one, would exceed the bound."""
CONTROL, TRANSACTIONAL = 0b100000, 0b10000

apache = pytest.mark.apache


class Attack:
    """A projector that runs, and what is published to it. Everything goes to one partition, so it is read in order."""

    def __init__(self, leadview: Leadview) -> None:
        self.leadview = leadview
        self.version = 0
        leadview.publish(crm.organization(), crm.api_key(), partition=0)
        self.publish_good()
        self._child: Child
        self.start()
        leadview.wait_until_served()
        assert set(stored.key_expiries(leadview.redis).values()) == {0}

    def publish_good(self) -> None:
        """Publish the next version of a lead and of its contact."""
        self.version += 1
        text = f"version {self.version}"
        lead, contact = crm.lead(self.version, referrer=text), crm.contact(self.version, first_name=text)
        self.leadview.publish(lead, contact, partition=0)

    def publish(self, data: bytes, kind: resources.Kind = resources.LEAD, records: int = 1, partition: int = 0) -> None:
        """Publish a batch with this number of records as it is."""
        topics = self.leadview.topics
        at = topics.name(kind), partition
        publish(self.leadview, at, data)
        topics.end_offsets[at] = topics.end_offsets.get(at, 0) + records

    def withstand(self, rows: "Mapping[str, Hostile]") -> None:
        """Publish all of these batches. Fails unless the program lives, and each batch left what its row says."""
        places = {}
        for name, row in rows.items():
            topic = self.leadview.topics.name(row.kind)
            first = self.leadview.topics.end_offsets.get((topic, 0), 0)
            self.publish(row.data, row.kind, row.records)
            places[name] = [names.dead_letter(topic, 0, first + number) for number in range(row.records)]
            for message in row.good:
                self.leadview.topics.reference.add(message.record(first))
        self.assert_survived()
        letters = self.leadview.redis.hgetall(names.DEAD_LETTERS)
        assert all(len(letter) < MAX_DEAD_LETTER for letter in letters.values())
        for name, row in rows.items():
            found = [letters.pop(place.encode()) for place in places[name] if place.encode() in letters]
            reasons = [msgspec.json.decode(letter, type=DeadLetter).reason for letter in found]
            assert len(reasons) in row.number, (name, reasons)
            assert all(row.reason in reason for reason in reasons), (name, reasons)
        assert not letters
        for document in self.leadview.documents().values():
            orjson.loads(document)

    def publish_worst(self, times: int) -> None:
        """Publish this number of records of each shape that takes long to read, of 1 MiB."""
        messages = [worst.make(900_000) for worst in OF_RECORDS]
        for kind in (resources.CONTACT, resources.LEAD):
            of_kind = [message for message in messages if message.kind is kind]
            batches = [of_kind[start : start + 4] for start in range(0, len(of_kind), 4)]
            for some in batches * times:
                records = [record(message, tuple(_headers(message)), n) for n, message in enumerate(some)]
                self.publish(batch(records, codec=ZSTD), kind, len(some))

    def start(self) -> None:
        """Start a projector."""
        self._child = self.leadview.start("run")

    def stop(self) -> None:
        """Stop the projector."""
        self._child.stop()

    def assert_survived(self) -> None:
        """The good records after the bad ones are applied, in each topic, and so is a revocation."""
        self.publish_good()
        self.leadview.publish(crm.api_key(2, status="revoked"), partition=0)
        wait_until(while_running(self._child, self.leadview.is_current), "all is read", 2 * PATIENCE_SECONDS)
        assert self.leadview.documents() == self.leadview.expected()
        assert set(stored.key_expiries(self.leadview.redis).values()) == {1}
        self._child.check_running()
        assert peak_memory(self._child.pid) < MAX_MEMORY

    def reasons(self) -> list[str]:
        """Returns why records were parked. Each dead letter is small."""
        letters: dict[bytes, Any] = self.leadview.redis.hgetall(names.DEAD_LETTERS)
        assert all(len(letter) < MAX_DEAD_LETTER for letter in letters.values())
        return [msgspec.json.decode(letter, type=DeadLetter).reason for letter in letters.values()]


def publish(leadview: Leadview, at: tuple[str, int], data: bytes) -> None:
    """Publish a batch as it is, as soon as its partition has a leader."""

    def is_taken() -> bool:
        return asyncio.run(raw_batches.publish(leadview.kafka.bootstrap_servers, *at, data)) == 0

    wait_until(is_taken, "the broker has taken the batch")


@pytest.fixture
def attack(leadview: Leadview) -> Attack:
    return Attack(leadview)


@pytest.fixture(scope="module")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kafka]:
    with ExitStack() as stack:
        kafka = stack.enter_context(EmbeddedKafka.start(tmp_path_factory.mktemp("embedded")))
        yield Kafka("embedded", kafka.bootstrap_servers, kafka.create_topic)


@pytest.fixture
def attack_on_embedded(
    embedded: Kafka, redis_server: RedisService, topic_prefix: str, tmp_path: Path
) -> Iterator[Attack]:
    with new_leadview(embedded, topic_prefix, redis_server, tmp_path) as leadview:
        yield Attack(leadview)


def record(message: Message, headers: tuple[Header, ...] = (), offset: int = 0) -> bytes:
    return raw_batches.record(offset, message.key, message.value, headers)


class Hostile(NamedTuple):
    """A batch, and what it leaves: a number of dead letters whose reason contains a text, and good records."""

    data: bytes
    reason: str = ""
    number: Sequence[int] = (1,)
    records: int = 1
    kind: resources.Kind = resources.LEAD
    good: Sequence[Message] = ()


def packed(message: Message, text: bytes, codec: int = NONE) -> bytes:
    """Returns a batch of a message with these bytes of JSON in place of "PLACE"."""
    value = (message.value or b"").replace(b'"PLACE"', text)
    return batch([record(msgspec.structs.replace(message, value=value))], codec=codec)


def of_text(megabytes: int) -> bytes:
    """Returns a batch of a lead with a text of this size."""
    return packed(crm.lead(2, id=crm.uuid(0x79), referrer="PLACE"), b'"%b"' % (b"x" * megabytes * MEGA), LZ4)


def of_key(megabytes: int, codec: int = ZSTD) -> bytes:
    """Returns a batch of a record with a key of this size."""
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
NOT_UTF_8 = batch([record(BAD, ((b"\xff\xfe", b"x"),), offset) for offset in range(3)])
DIGITS = b"9" * 4300
TOO_LARGE, NOT_IN_ORDER = "has more than 16,777,216 bytes", "the offsets of its records are not in order"
EVENT, EMPTY = b'{"id":"%b"}' % crm.uuid(1).encode(), b'{"a":[]}'


def of_any_producer() -> dict[str, Hostile]:
    """What Apache Kafka stores."""
    in_lead = crm.lead(2, id=BAD_ID, attribution={"a": "PLACE"})
    in_contact = crm.contact(2, id=BAD_ID, custom_fields={"a": "PLACE"})
    return {
        "no content type": Hostile(batch([record(crm.binary(BINARY), NO_TYPE)]), number=(0,), good=[BINARY]),
        "a name of a header": Hostile(NOT_UTF_8, "", (3,), 3),
        "a name of a header of a key": Hostile(NOT_UTF_8, "", (3,), 3, KEY),
        "twice": Hostile(batch([record(FIRST, offset=at) for at in (0, 0, 2)]), NOT_IN_ORDER, records=3, good=[FIRST]),
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


def of_a_broken_broker() -> dict[str, Hostile]:
    """What only the embedded Kafka stores."""
    good, huge = record(crm.lead(1, id=crm.uuid(0x77))), b"\xfe" + b"\xff" * 8 + b"\x01"
    lengths = {"cut off": good[:-20], "huge": huge + good, "a huge key": b"\x22\x00\x00\x00" + huge + b"keys"}
    rows = {name: Hostile(batch([b""], compressed=content)) for name, content in lengths.items()}
    markers = (b"\x02\x00", raw_batches.record(0, b"", None), raw_batches.record(0, b"\0\0", b""))
    for kind in (LEAD, KEY):
        for codec in (GZIP, SNAPPY, LZ4, ZSTD, 7):
            data = batch([b""] * 3, attributes=codec, compressed=b"\x00garbage" * 20)
            said = "cannot be read: it cannot be decompressed"
            rows[f"garbage in codec {codec} ({kind.noun})"] = Hostile(data, said, (1,), 3, kind)
        for content in markers:
            data = batch([content], attributes=CONTROL | TRANSACTIONAL, producer=7)
            rows[f"a marker {content!r} ({kind.noun})"] = Hostile(data, number=(0,), kind=kind)
    return rows


@apache
def test_what_producers_send(attack: Attack) -> None:
    """Contacts change afterwards, and the leads are still valid JSON: they were cut at places of three bytes."""
    attack.withstand(of_any_producer())


def test_what_a_broken_broker_returns(attack_on_embedded: Attack) -> None:
    """The records of a batch that cannot be read are redriven together."""
    attack, rows = attack_on_embedded, of_a_broken_broker()
    attack.withstand(rows)
    letters = attack.leadview.redis.hgetall(names.DEAD_LETTERS)
    done = attack.leadview.run("dead-letters", "redrive")
    assert f"{len(letters)} redriven, {len(letters)} still bad" in done, done
    attack.stop()
    records = attack.leadview.publish(*(crm.lead(1, id=crm.uuid(0x100 + n)) for n in range(3)), partition=0)
    of_three = next(letter for letter in map(orjson.loads, letters.values()) if letter["offsets"] == 3)
    readable = of_three | {"topic": records[0].topic, "offset": records[0].offset}
    field = names.dead_letter(records[0].topic, 0, records[0].offset)
    attack.leadview.redis.hset(names.DEAD_LETTERS, field, orjson.dumps(readable))
    done = attack.leadview.run("dead-letters", "redrive")
    assert f"{field}  applied" in done, done
    assert attack.leadview.documents() == attack.leadview.expected()
    assert len(attack.reasons()) == len(letters)


@apache
@pytest.mark.long
def test_records_of_the_largest_size(attack: Attack) -> None:
    """100 MB of good leads in batches of a few kilobytes: memory is bounded by bytes, not by the number of records.

    So it is in a rebuild, and while they are compared.
    """
    text = "x" * 900_000
    for number in range(11):
        leads = [crm.lead(1, id=crm.uuid(0x1000 + 10 * number + n), referrer=text) for n in range(10)]
        attack.publish(batch([record(lead, offset=n) for n, lead in enumerate(leads)], codec=ZSTD), records=10)
        for lead in leads:
            attack.leadview.topics.reference.add(lead.record(100))
    attack.assert_survived()
    assert attack.reasons() == []
    for word in ("rebuild", "verify"):
        done = attack.leadview.run(word, command=MEASURED)
        assert done.status == 0, done.output
        [(peak)] = re.findall(r"^peak (\d+)$", done.stdout, re.MULTILINE)
        assert int(peak) < MAX_MEMORY, word


@apache
@pytest.mark.long
def test_the_first_records_of_many_partitions(leadview: Leadview) -> None:
    """To know since when they wait, one batch is decompressed at a time, whatever the number of partitions."""
    deletions = [raw_batches.record(n, b"%b:%d" % (crm.uuid(1).encode(), n), None) for n in range(300_000)]
    data = batch(deletions, codec=ZSTD)
    leadview.topics.add_partitions(resources.LEAD, _PARTITIONS)
    for number in range(_PARTITIONS):
        at = leadview.topics.name(resources.LEAD), number
        publish(leadview, at, data)
    done = leadview.run("status", command=MEASURED)
    assert f"{_PARTITIONS * 300_000:,}" in done, done.output
    [(peak)] = re.findall(r"^peak (\d+)$", done.stdout, re.MULTILINE)
    assert int(peak) < MAX_MEMORY


@apache
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
    attack.stop()
    messages = [crm.lead(1, id=crm.uuid(0x1000 + n), referrer="x" * 900_000) for n in range(leads)]
    data = batch([record(message, offset=n) for n, message in enumerate(messages)], codec=codec)
    attack.leadview.topics.add_partitions(resources.LEAD, partitions)
    for number in range(batches * partitions):
        attack.publish(data, records=leads, partition=number % partitions)
    for message in messages:
        attack.leadview.topics.reference.add(message.record(100))
    attack.start()
    attack.assert_survived()
    assert attack.reasons() == []


class Seen(NamedTuple):
    """What was answered, and how many of the worst records were not applied afterwards."""

    livez: int
    healthz: int
    api: int
    oldest_ms: int
    """The age of the last heartbeat."""
    waiting: int


@apache
def test_a_revocation_behind_the_worst_records(attack: Attack, tmp_path: Path) -> None:
    """The worst records, of 1 MiB each, keep a projector busy for seconds. Meanwhile a key is revoked, and the API
    refuses it; health and heartbeats continue, and no partition changes hands. No record makes a slice of the loop
    much longer than a plain record of that size takes.

    Whether records still wait is asked behind each answer, so they waited when it was given. If they did not last until
    the key was refused, nothing was shown: it is tried again with twice as many, on a machine of any speed.
    """
    attack.stop()
    port = free_port()
    settings = {"dead_letter_row": 100_000, "dead_letter_share": 1, "metrics_port": port}
    child = attack.leadview.start("run", command=SLICES, log="slices", **settings)
    at = attack.leadview.topics.name(resources.LEAD), 0
    versions = count(2)

    with attack.leadview.api() as api:

        def look(key: str) -> Seen:
            child.check_running()
            livez, healthz = (ask(port, path)[0] for path in ("/livez", "/healthz"))
            status = api.get(f"{LEADS}{crm.LEAD}", key=key).status
            oldest = oldest_heartbeat(attack.leadview.redis)
            waiting = attack.leadview.topics.end_offsets[at] - attack.leadview.positions()[at]
            return Seen(livez, healthz, status, oldest, waiting)

        def revoke(times: int) -> tuple[list[Seen], float, float]:
            """Revoke a new key behind that many records of each shape. Returns what was seen until it was refused, and
            how long that took, without the seconds in which the machine stood still, and these."""
            key = api_keys.mint(crm.ORGANIZATION)
            attack.leadview.publish(crm.api_key(next(versions), hash=api_keys.key_hash(key)), partition=0)
            wait_until(while_running(child, attack.leadview.is_current), "the key is known")
            begin = attack.leadview.positions()[at]
            attack.publish_worst(times)
            reads = while_running(child, lambda: attack.leadview.positions()[at] > begin)
            wait_until(reads, "the worst records are being read", 2 * PATIENCE_SECONDS)
            revoked = crm.api_key(next(versions), hash=api_keys.key_hash(key), status="revoked")
            attack.leadview.publish(revoked, partition=0)
            with Stopwatch() as stopwatch:
                seen = [look(key)]
                while seen[-1].api != 401:
                    seen.append(look(key))
                return seen, stopwatch.seconds, stopwatch.lost

        for times in (TIMES, 2 * TIMES, 4 * TIMES):
            seen, took, lost = revoke(times)
            if all(one.waiting > 0 for one in seen):
                break
        else:
            pytest.fail("the worst records never lasted until the key was refused")
        sys.stdout.write(
            f"refused after {took:.2f} s, {lost:.2f} s lost, while {seen[-1].waiting} of the worst records waited\n"
        )
        assert {one.livez for one in seen} == {one.healthz for one in seen} == {200}
        assert {one.api for one in seen} <= {200, 401}
        assert max(one.oldest_ms for one in seen) < SILENT_MS + 1000 * lost
        assert took < 1
    wait_until(while_running(child, attack.leadview.is_current), "all is read", 4 * PATIENCE_SECONDS)
    child.stop()
    assert attack.leadview.documents() == attack.leadview.expected()
    assert len(attack.reasons()) > len(OF_RECORDS) // 2
    log = (tmp_path / "slices.log").read_text()
    [(longest, plain, assignments)] = re.findall(
        r"^longest slice (\S+) s, plain record (\S+) s, (\d+) assignments", log, re.MULTILINE
    )
    sys.stdout.write(f"longest slice {longest} s, plain record {plain} s\n")
    # Nothing interrupts a poll that unpacks, which stops after a time, and the first step of the first record.
    assert 0 < float(longest) < LONGEST_SECONDS + 2 * float(plain), log[-200:]
    assert int(assignments) == len(("access", "documents")), "the group rebalanced"


def oldest_heartbeat(client: Any) -> int:
    """Returns the age of the oldest heartbeat of a projector in milliseconds, by the clock of Redis."""
    pipeline = client.pipeline()
    (seconds, micros), writers = pipeline.hgetall(names.WRITERS).time().execute()[::-1]
    now = seconds * 1000 + micros // 1000
    return max((now - int(value.split(b" ")[0]) for value in writers.values()), default=0)


def _headers(message: Message) -> Iterator[Header]:
    for name, content in message.headers:
        yield name.encode(), content
