"""Records for the projector in a real Kafka: 70 % leads and 30 % contacts, which have one to five leads each."""

from collections.abc import Iterable, Iterator
from itertools import cycle
from random import Random

from confluent_kafka import Producer
from msgspec.structs import replace

from bench.crm import Crm, Tenant
from bench.prober import Event
from projector.record import Record

PREFIX = "crm."
_ORGANIZATIONS = 200
_LEADS_OF_A_CONTACT = (1, 2, 3, 1, 5, 2, 3, 2, 1, 4)  # 24 leads on 10 contacts: 70 %


class Traffic:
    """Organizations with an API key each, and any number of their leads and contacts. Records have about 900 bytes."""

    def __init__(self) -> None:
        self._crm = Crm()
        self._random = Random(1)  # noqa: S311 - it must be repeatable
        self.access = [record for _ in range(_ORGANIZATIONS) for record in self._crm.organization()]
        self._contacts = self._contacts_with_leads()

    @property
    def tenants(self) -> list[Tenant]:
        return self._crm.tenants

    def documents(self, count: int) -> list[Record]:
        """This number of new leads and contacts, in random order."""
        records: list[Record] = []
        while len(records) < count:
            records += next(self._contacts)
        self._random.shuffle(records)
        return records[:count]

    def contacts_and_leads(self, leads: int) -> tuple[list[Record], list[Record]]:
        """New contacts, and this number (or a few more) of new leads of them; each list in random order."""
        contacts: list[Record] = []
        all_leads: list[Record] = []
        while len(all_leads) < leads:
            contact, *leads_of_contact = next(self._contacts)
            contacts.append(contact)
            all_leads += leads_of_contact
        self._random.shuffle(contacts)
        self._random.shuffle(all_leads)
        return contacts, all_leads

    def _contacts_with_leads(self) -> Iterator[list[Record]]:
        for tenant, fan_out in zip(cycle(self.tenants), cycle(_LEADS_OF_A_CONTACT)):
            contact, lead = self._crm.lead_and_contact(tenant)
            others = (self._crm.lead_and_contact(tenant) for _ in range(fan_out - 1))
            yield [contact, lead, *(of_contact(contact, *other) for other in others)]


def of_contact(contact: Record, other: Record, lead: Record) -> Record:
    """The lead of the contact `other`, changed into a lead of `contact`."""
    return replace(lead, value=(lead.value or b"").replace(entity_id(other), entity_id(contact)))


def entity_id(record: Record) -> bytes:
    """The id of the lead or contact in the record's key."""
    return (record.key or b"").partition(b":")[2]


def publish(bootstrap_servers: str, records: Iterable[Record | Event], prefix: str = PREFIX) -> None:
    """Send these records to the topics with this prefix. Returns when Kafka has acknowledged all of them."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "partitioner": "murmur2_random", "linger.ms": 20})
    for record in records:
        topic = prefix + record.topic.removeprefix(PREFIX)
        while True:
            try:
                producer.produce(topic, record.value, record.key)
            except BufferError:
                producer.poll(0.1)
            else:
                break
    producer.flush(60)
