"""Nothing that is published can stop a projector, slow it or bloat it: a test for each way that once did.

In each test, a bad batch comes between good ones, and an API key is revoked after it. The program lives, its memory
stays within a bound, what is good is applied, and the bad batch becomes a small dead letter that names the limit.
Apache Kafka refuses some of these batches, so they are published to the embedded one, which stores whatever it gets.
"""

import asyncio
import re
import struct
import sys
from collections.abc import Iterator
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

    def publish_worst(self, times: int) -> None:
        """Publish so many records of each shape that takes long to read, of 1 MiB."""
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


def of_size(message: Message, place: str, text: bytes) -> Message:
    """Returns the message with these bytes of JSON at a place."""
    return msgspec.structs.replace(message, value=(message.value or b"").replace(b'"%s"' % place.encode(), text))


@apache
def test_a_content_type_that_is_null(attack: Attack) -> None:
    """It is as good as none, so the event is good."""
    message = crm.binary(crm.lead(3, referrer="binary"))
    headers = tuple((name.encode(), None if name == "content-type" else value) for name, value in message.headers)
    attack.publish(batch([record(message, headers)]))
    wait_until(attack.leadview.is_current, "it is read")
    assert any(b'"referrer":"binary"' in document for document in attack.leadview.documents().values())
    attack.leadview.topics.reference.add(message.record(1))
    attack.version = 3
    attack.assert_survived()
    assert attack.reasons() == []


@apache
@pytest.mark.parametrize("kind", [resources.LEAD, resources.API_KEY], ids=["leads", "api keys"])
def test_the_name_of_a_header_is_not_utf_8(attack: Attack, kind: resources.Kind) -> None:
    """It is none of ours, so the records of the batch are read. These are bad, to be told from others."""
    bad = msgspec.structs.replace(crm.lead(), value=b"{")
    records = [record(bad, ((b"\xff\xfe", b"x"),), offset) for offset in range(3)]
    attack.publish(batch(records), kind, 3)
    attack.assert_survived()
    assert len(attack.reasons()) == 3


def test_batches_that_cannot_be_decompressed(attack_on_embedded: Attack) -> None:
    attack = attack_on_embedded
    for kind in (resources.LEAD, resources.API_KEY):
        for codec in (GZIP, SNAPPY, LZ4, ZSTD, 7):
            attack.publish(batch([b""] * 3, attributes=codec, compressed=b"\x00garbage" * 20), kind, 3)
    attack.assert_survived()
    reasons = attack.reasons()
    assert len(reasons) == 10
    assert all("cannot be read: it cannot be decompressed" in reason for reason in reasons)


def test_control_records_that_are_too_short(attack_on_embedded: Attack) -> None:
    attack = attack_on_embedded
    for kind in (resources.LEAD, resources.API_KEY):
        for content in (b"\x02\x00", raw_batches.record(0, b"", None), raw_batches.record(0, b"\0\0", b"")):
            attack.publish(batch([content], attributes=CONTROL | TRANSACTIONAL, producer=7), kind)
    attack.assert_survived()
    assert attack.reasons() == []


def test_records_whose_lengths_are_wrong(attack_on_embedded: Attack) -> None:
    attack = attack_on_embedded
    good = record(crm.lead(1))
    huge = b"\xfe" + b"\xff" * 8 + b"\x01"
    for content in (good[:-20], huge + good, b"\x22\x00\x00\x00" + huge + b"keys", good + b"\x00"):
        attack.publish(batch([b""], compressed=content))
    attack.assert_survived()
    assert 3 <= len(attack.reasons()) <= 4


@apache
@pytest.mark.parametrize("size", [20 * MEGA, 110 * MEGA], ids=["20 MB", "110 MB"])
def test_a_huge_key(attack: Attack, size: int) -> None:
    attack.publish(batch([raw_batches.record(0, b"k" * size, b"{}")], codec=ZSTD))
    attack.publish(batch([raw_batches.record(0, b"k" * size, b"{}")], codec=ZSTD), resources.ORGANIZATION)
    attack.publish(batch([raw_batches.record(0, b"k" * (15 * MEGA), b"{}")], codec=GZIP))
    attack.assert_survived()
    reasons = sorted(attack.reasons())
    assert len(reasons) == 3
    assert all("has more than 16,777,216 bytes" in reason for reason in reasons[:2])
    assert reasons[2] == "the message key has 15,000,000 bytes, more than 200"


@apache
@pytest.mark.parametrize(
    ("size", "reason"),
    [
        pytest.param(17 * MEGA, "has more than 16,777,216 bytes", id="17 MB"),
        pytest.param(12 * MEGA, "the value has 12,000,", id="12 MB"),
    ],
)
def test_a_large_lead(attack: Attack, size: int, reason: str) -> None:
    """Its contact changes afterwards, and the lead is still valid JSON: it was cut at a place of three bytes."""
    attack.publish(batch([record(of_size(crm.lead(2, referrer="PLACE"), "PLACE", b'"%b"' % (b"x" * size)))], codec=LZ4))
    attack.assert_survived()
    [found] = attack.reasons()
    assert reason in found
    for document in attack.leadview.documents().values():
        orjson.loads(document)


@apache
@pytest.mark.parametrize(
    ("field", "text", "size"),
    [
        pytest.param("events", b'{"id":"%b"}' % crm.uuid(1).encode(), 100 * MEGA, id="100 MB of events"),
        pytest.param("attribution", b'{"a":[]}', 50 * MEGA, id="50 MB of attribution"),
    ],
)
def test_a_little_that_becomes_much(attack: Attack, field: str, text: bytes, size: int) -> None:
    many = b"[%b]" % b",".join([text] * (size // len(text)))
    lead = crm.lead(2, events="PLACE") if field == "events" else crm.lead(2, attribution={"a": "PLACE"})
    bad = of_size(lead, "PLACE", many)
    for codec in (LZ4, ZSTD):
        attack.publish(batch([record(bad)], codec=codec))
    attack.assert_survived()
    reasons = attack.reasons()
    assert len(reasons) == 2
    assert all("has more than 16,777,216 bytes" in reason for reason in reasons)


@apache
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


@apache
def test_integers_of_4300_digits(attack: Attack) -> None:
    number = b"9" * 4300
    contact = of_size(crm.contact(2, custom_fields={"a": "PLACE"}), "PLACE", number)
    lead = of_size(crm.lead(2, attribution={"a": "PLACE"}), "PLACE", number)
    attack.publish(batch([record(contact)]), resources.CONTACT)
    attack.publish(batch([record(lead)]))
    attack.assert_survived()
    reasons = attack.reasons()
    assert len(reasons) == 2
    assert any("$.data.custom_fields" in reason for reason in reasons)
    assert any("$.data.attribution" in reason for reason in reasons)


@apache
def test_offsets_that_are_not_in_order(attack: Attack) -> None:
    """Apache Kafka does not look at the offsets of records that are not compressed."""
    attack.publish(batch([record(crm.lead(2), offset=offset) for offset in (0, 0, 2)]), records=3)
    attack.publish(batch([record(crm.lead(2), offset=offset) for offset in (0, 99)]), records=2)
    attack.leadview.topics.reference.add(crm.lead(2).record(1))
    attack.version = 2
    attack.assert_survived()
    assert all("the offsets of its records are not in order" in reason for reason in attack.reasons())
    assert len(attack.reasons()) == 2


def test_the_records_of_a_batch_are_redriven_together(attack_on_embedded: Attack) -> None:
    attack = attack_on_embedded
    attack.publish(batch([b""] * 3, attributes=ZSTD, compressed=struct.pack(">q", 7)), records=3)
    attack.assert_survived()
    [(field, letter)] = attack.leadview.redis.hgetall(names.DEAD_LETTERS).items()
    assert orjson.loads(letter)["offsets"] == 3
    done = attack.leadview.run("dead-letters", "redrive")
    assert "1 redriven, 1 still bad" in done, done
    assert len(attack.reasons()) == 1

    attack.stop()
    records = attack.leadview.publish(*(crm.lead(1, id=crm.uuid(0x100 + n)) for n in range(3)), partition=0)
    readable = orjson.loads(letter) | {"offset": records[0].offset}
    field = names.dead_letter(records[0].topic, 0, records[0].offset)
    attack.leadview.redis.hset(names.DEAD_LETTERS, field, orjson.dumps(readable))
    done = attack.leadview.run("dead-letters", "redrive")
    assert f"{field}  applied" in done, done
    assert attack.leadview.documents() == attack.leadview.expected()
    assert len(attack.reasons()) == 1


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
            """Revoke a new key behind so many records of each shape. Returns what was seen until it was refused, and
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
