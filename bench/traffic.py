"""Records for the projector in a real Kafka: 70 % leads, 30 % contacts, one to five leads on a contact."""

from collections.abc import Iterator
from itertools import cycle
from random import Random

from confluent_kafka import Producer
from msgspec.structs import replace

from bench.crm import Crm
from projector.record import Record

_ORGANIZATIONS = 200
_LEADS_OF_A_CONTACT = (1, 2, 3, 1, 5, 2, 3, 2, 1, 4)  # 24 leads on 10 contacts: 70 %


def records(count: int) -> list[Record]:
    """So many leads and contacts in any order, as events of about 900 bytes."""
    crm = Crm()
    for _ in range(_ORGANIZATIONS):
        list(crm.organization())
    fan_outs = cycle(_LEADS_OF_A_CONTACT)
    found: list[Record] = []
    for tenant in cycle(crm.tenants):
        contact, lead = crm.lead_and_contact(tenant)
        found += [contact, lead]
        for _ in range(next(fan_outs) - 1):
            found.append(_of_contact(contact, *crm.lead_and_contact(tenant)))
        if len(found) >= count:
            break
    Random(1).shuffle(found)  # noqa: S311 - it must repeat
    return found[:count]


def _of_contact(contact: Record, other: Record, lead: Record) -> Record:
    """The lead of another contact, as one of this contact."""
    return replace(lead, value=(lead.value or b"").replace(_entity_id(other), _entity_id(contact)))


def _entity_id(record: Record) -> bytes:
    return (record.key or b"").partition(b":")[2]


def publish(bootstrap_servers: str, found: Iterator[Record] | list[Record]) -> None:
    """Send them, and return when Kafka has them all."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "partitioner": "murmur2_random", "linger.ms": 20})
    for record in found:
        while True:
            try:
                producer.produce(record.topic, record.value, record.key)
            except BufferError:
                producer.poll(0.1)
            else:
                break
    producer.flush(60)
