"""The sample of live records that is searched for unknown fields: one of each topic in a second."""

from unittest.mock import patch

import msgspec

from projector.line.metrics import SAMPLED, UnknownFields
from projector.record import Partition, Record
from projector.unknown_fields import has_unknown_fields, unknown_fields
from schemas import resources
from schemas.faults import Fault
from tests.harness import crm

LEADS, CONTACTS = Partition("crm.leads", 0), Partition("crm.contacts", 0)


def counted(topic: str) -> tuple[float, float]:
    """Returns how many records of the sample had known fields only, and how many had others."""
    [family] = SAMPLED.collect()
    values = {sample.labels["fields"]: sample.value for sample in family.samples if sample.labels["topic"] == topic}
    return values["known"], values["unknown"]


def test_one_record_of_each_topic_in_a_second_is_counted() -> None:
    SAMPLED.clear()
    sample = UnknownFields([LEADS.topic, CONTACTS.topic])
    assert (counted(LEADS.topic), counted(CONTACTS.topic)) == ((0, 0), (0, 0)), "they begin with 0"
    known, unknown = crm.lead().record(), crm.lead(event_typ_key="x").record()
    sample.look({LEADS: [known, unknown], CONTACTS: [crm.contact().record()]}, 100.0)
    sample.look({LEADS: [known], Partition("crm.leads", 1): [unknown]}, 100.9)
    assert (counted(LEADS.topic), counted(CONTACTS.topic)) == ((0, 1), (1, 0))
    sample.look({LEADS: [known]}, 101.0)
    assert counted(LEADS.topic) == (1, 1)


def test_what_takes_long_or_has_no_fields_is_left_out() -> None:
    SAMPLED.clear()
    sample = UnknownFields([LEADS.topic])
    large = crm.lead(colour="red", referrer="x" * 17_000).record()
    unread = Record("crm.leads", 0, 0, 0, b"", None, (), resources.LEAD, Fault("unreadable_batch"))
    for record in (large, unread, crm.tombstone(resources.LEAD).record()):
        sample.look({LEADS: [record]}, 100.0)
    assert counted(LEADS.topic) == (0, 0)
    sample.look({LEADS: [msgspec.structs.replace(large, value=b"no JSON")]}, 100.0)
    assert counted(LEADS.topic) == (1, 0), "a bad record has a dead letter, and counts once"


def test_many_unknown_fields_take_no_longer_than_one() -> None:
    """A search for the nearest name of each would let the event loop stand."""
    names = {f"contact_i{number}": 0 for number in range(800)}
    record = crm.lead(**names).record()
    with patch("projector.unknown_fields.get_close_matches") as search:
        assert has_unknown_fields(record)
    assert not search.called
    assert len(unknown_fields(record)) == 100, "whoever asks for the names gets the first hundred"
