"""Records for the projector in a real Kafka: 70 % leads, 30 % contacts, one to five leads on a contact."""

from collections.abc import Iterable, Iterator
from itertools import cycle
from random import Random

from confluent_kafka import Producer
from msgspec.structs import replace

from bench.crm import Crm, Tenant
from projector.record import Record

PREFIX = "crm."
_ORGANIZATIONS = 200
_LEADS_OF_A_CONTACT = (1, 2, 3, 1, 5, 2, 3, 2, 1, 4)  # 24 leads on 10 contacts: 70 %


class Traffic:
    """Organizations with a key each, and as many records of theirs as are asked for, of about 900 bytes."""

    def __init__(self) -> None:
        self._crm = Crm()
        self._random = Random(1)  # noqa: S311 - it must repeat
        self.access = [record for _ in range(_ORGANIZATIONS) for record in self._crm.organization()]
        self._contacts = self._contacts_with_leads()

    @property
    def tenants(self) -> list[Tenant]:
        return self._crm.tenants

    def documents(self, count: int) -> list[Record]:
        """So many leads and contacts that were not there before, in any order."""
        found: list[Record] = []
        while len(found) < count:
            found += next(self._contacts)
        self._random.shuffle(found)
        return found[:count]

    def contacts_and_leads(self, leads: int) -> tuple[list[Record], list[Record]]:
        """So many new leads, and before them their contacts; both in any order."""
        contacts: list[Record] = []
        of_them: list[Record] = []
        while len(of_them) < leads:
            contact, *its_leads = next(self._contacts)
            contacts.append(contact)
            of_them += its_leads
        self._random.shuffle(contacts)
        self._random.shuffle(of_them)
        return contacts, of_them

    def _contacts_with_leads(self) -> Iterator[list[Record]]:
        for tenant, fan_out in zip(cycle(self.tenants), cycle(_LEADS_OF_A_CONTACT)):
            contact, lead = self._crm.lead_and_contact(tenant)
            others = (self._crm.lead_and_contact(tenant) for _ in range(fan_out - 1))
            yield [contact, lead, *(of_contact(contact, *other) for other in others)]


def of_contact(contact: Record, other: Record, lead: Record) -> Record:
    """The lead of another contact, as one of this contact."""
    return replace(lead, value=(lead.value or b"").replace(entity_id(other), entity_id(contact)))


def entity_id(record: Record) -> bytes:
    """The id of the lead or contact."""
    return (record.key or b"").partition(b":")[2]


def publish(bootstrap_servers: str, found: Iterable[Record], prefix: str = PREFIX) -> None:
    """Send them to the topics with this prefix, and return when Kafka has them all."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "partitioner": "murmur2_random", "linger.ms": 20})
    for record in found:
        topic = prefix + record.topic.removeprefix(PREFIX)
        while True:
            try:
                producer.produce(topic, record.value, record.key)
            except BufferError:
                producer.poll(0.1)
            else:
                break
    producer.flush(60)
