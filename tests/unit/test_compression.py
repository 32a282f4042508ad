"""Compressed documents: the dictionary, and what is not a compressed text."""

from hashlib import sha256

import pytest
import zstandard

from bench import dictionary
from projector.mapping import PutDocument, PutLead
from projector.redis.calls import compressed
from schemas import compression
from schemas.bodies import SUMMARY, body, packed_lead, packed_value
from schemas.compression import Unreadable, packed, unpacked
from schemas.layouts import HEAD, LEAD_BODY, LEAD_SUMMARY_PLACE, NUMBER_BYTES, SUMMARY_FIELDS_STOP
from schemas.limits import MAX_DOCUMENT_BYTES
from schemas.resources import CONTACT, LEAD, RESOURCES, Resource
from tests.harness import crm
from tests.harness.projection import intent_of

DICTIONARIES = {1: "5ddb361bdff13cfc4c7c1bbac4a0dc07cc762f43b7dce30c55671965e71c6109"}
"""The SHA-256 of each dictionary. A dictionary never changes, and a row is never removed: Redis may need it."""
TEXT = b'{"id":"00000000-0000-4000-8000-000000000011"}'


def test_the_dictionaries_are_those_that_were_shipped() -> None:
    assert max(DICTIONARIES) == compression.DICTIONARY
    assert {number: sha256(compression.dictionary(number)).hexdigest() for number in DICTIONARIES} == DICTIONARIES
    assert all(zstandard.ZstdCompressionDict(compression.dictionary(n)).dict_id() == n for n in DICTIONARIES)


def test_the_newest_dictionary_can_be_trained_again() -> None:
    """On the texts of the day on which it was trained. Documents may have had further fields since then."""
    number = compression.DICTIONARY
    corpus = zstandard.ZstdDecompressor().decompress(dictionary.corpus_of(number).read_bytes()).split(b"\n")
    assert dictionary.trained(corpus, number) == compression.dictionary(number)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(TEXT, id="short"),
        pytest.param(b"", id="empty"),
        pytest.param(bytes(range(256)) * 8, id="not JSON"),
        pytest.param(b"x" * MAX_DOCUMENT_BYTES, id="the largest document"),
    ],
)
def test_packed_text_is_unpacked(text: bytes) -> None:
    stored = packed(text)
    assert (stored[0], unpacked(stored)) == (compression.DICTIONARY, text)


@pytest.mark.parametrize("fields", [pytest.param({}, id="short"), pytest.param({"referrer": "x" * 2000}, id="long")])
def test_packed_lead_takes_a_third_and_is_read_with_its_contact(fields: crm.Json) -> None:
    intent = intent_of(crm.lead(**fields).record())
    assert isinstance(intent, PutLead)
    text = b"".join((intent.before, SUMMARY, intent.after))
    before, after = packed_lead(intent.contact_id, text)
    assert len(before + after) < len(text) / 3
    summary = b'{"id":"%b"}' % intent.contact_id.encode()
    value = bytearray(LEAD_BODY)
    value[LEAD_SUMMARY_PLACE] = b"".join(len(part).to_bytes(NUMBER_BYTES, "little") for part in (before, summary))
    assert body(LEAD, b"".join((value, before, summary, after))) == text.replace(SUMMARY, summary)


def test_packed_contact_is_read() -> None:
    intent = intent_of(crm.contact(email="ada@example.com", custom_fields={"a": "b"}).record())
    assert isinstance(intent, PutDocument)
    head, stored = SUMMARY_FIELDS_STOP.stop, packed_value(CONTACT, intent.value)
    first_lead = bytes(CONTACT.body_offset - head)
    assert stored[head:] != intent.value[head:]
    assert body(CONTACT, stored[:head] + first_lead + stored[head:]) == intent.value[head:]


@pytest.mark.parametrize(
    ("stored", "why"),
    [
        pytest.param(b"", "corrupt", id="nothing"),
        pytest.param(b"\1", "corrupt", id="no frame"),
        pytest.param(packed(TEXT)[:-3], "corrupt", id="cut off"),
        pytest.param(packed(TEXT)[:-9] + b"\xff" * 9, "corrupt", id="other bytes"),
        pytest.param(b"\x1e" + packed(TEXT)[1:], "byte 30", id="an unknown dictionary"),
        pytest.param(b"~" + TEXT[1:], "byte 126", id="neither JSON nor packed"),
        pytest.param(packed(b"x" * (MAX_DOCUMENT_BYTES + 1)), "1,048,577 bytes", id="larger than a document"),
    ],
)
def test_value_that_cannot_be_unpacked_says_why(stored: bytes, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        unpacked(stored)
    with pytest.raises(Unreadable):
        body(CONTACT, bytes(CONTACT.body_offset) + (stored or b"\1"))
    with pytest.raises(Unreadable):
        body(LEAD, bytes(LEAD_BODY) + b"\0" + stored)


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.noun)
def test_value_that_was_cut_off_cannot_be_read(resource: Resource) -> None:
    with pytest.raises(Unreadable):
        body(resource, bytes(HEAD))


def test_record_that_writes_no_document_stays_as_it_is() -> None:
    for message in (crm.organization(), crm.api_key(), *(crm.tombstone(resource) for resource in RESOURCES)):
        intent = intent_of(message.record())
        assert compressed(intent) is intent
