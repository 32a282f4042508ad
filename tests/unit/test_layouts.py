"""How values lie in Redis: the head, the positions inside bodies that Lua relies on, and content hashes."""

import struct
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas import examples, layouts, names
from schemas.layouts import Head, content_hash, milliseconds, read_head, write_head


def head(state: bytes, version: int, offset: int, partition: int, time: int) -> bytes:
    """As Lua packs it: `<c1I7I6I2I6`."""
    widths = ((version, 7), (offset, 6), (partition, 2), (time, 6))
    return state + b"".join(number.to_bytes(width, "little") for number, width in widths)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(head(b"L", 1, 0, 0, 0), Head(True, 1, 0, 0, 0), id="smallest"),
        pytest.param(
            head(b"L", 2**53 - 1, 2**48 - 1, 2**16 - 1, 2**48 - 1),
            Head(True, 2**53 - 1, 2**48 - 1, 2**12 - 1, 2**48 - 1, 15),
            id="largest",
        ),
        pytest.param(head(b"D", 7, 8, 9, 10), Head(False, 7, 8, 9, 10), id="deleted by an event"),
        pytest.param(head(b"T", 7, 8, 9, 10), Head(False, 7, 8, 9, 10), id="deleted by a tombstone"),
        pytest.param(head(b"L", 256, 1, 2, 3) + b'{"id":""}', Head(True, 256, 1, 2, 3), id="with a body"),
    ],
)
def test_read_head(value: bytes, expected: Head) -> None:
    assert read_head(value) == expected


@given(st.binary(max_size=60))
def test_read_head_answers_or_refuses_any_bytes(value: bytes) -> None:
    if len(value) >= layouts.HEAD:
        assert read_head(value).live is (value[:1] == b"L")
    else:
        with pytest.raises(ValueError, match="does not begin with a head"):
            read_head(value)


def test_a_time_before_1970_becomes_0() -> None:
    """Kafka's timestamps may be negative."""
    assert write_head(b"L", 1, 2, 3, -1) == write_head(b"L", 1, 2, 3, 0) == head(b"L", 1, 2, 3, 0)


def test_a_head_has_the_length_of_its_format() -> None:
    assert len(head(b"L", 1, 1, 1, 1)) == layouts.HEAD == 1 + 7 + 6 + 2 + 6


def test_sections_follow_each_other() -> None:
    assert slice(layouts.HEAD, layouts.HEAD + 2 * layouts.HASH_BYTES) == layouts.ETAG
    assert layouts.ETAG.stop + 3 + 3 == layouts.LEAD_BODY
    assert slice(layouts.ETAG.stop + 3, layouts.CONTACT_BODY) == layouts.FIRST_LEAD
    assert layouts.CONTACT_BODY - layouts.FIRST_LEAD.start == layouts.HASH_BYTES + len(
        names.short_id(examples.CONTACT_ID)
    )


def test_the_contact_id_of_a_lead_is_where_lua_reads_it() -> None:
    body = msgspec.json.encode(examples.LEAD)
    assert body[layouts.LEAD_CONTACT_ID].decode() == examples.CONTACT_ID


def test_the_summary_begins_with_the_same_bytes_as_the_lead_names() -> None:
    """`id` stands first in every document."""
    for document in (examples.LEAD, examples.CONTACT, examples.LEAD.contact):
        assert msgspec.json.encode(document).startswith(b'{"id":"')


@given(st.binary(), st.binary())
def test_content_hash(one: bytes, other: bytes) -> None:
    assert len(content_hash(one)) == layouts.HASH_BYTES
    assert content_hash(one) != layouts.NO_CONTACT
    assert (content_hash(one) == content_hash(other)) is (one == other)


def test_a_content_hash_is_exact_as_the_score_of_a_sorted_set() -> None:
    largest = int.from_bytes(b"\xff" * layouts.HASH_BYTES, "little")
    assert int(struct.unpack("<d", struct.pack("<d", largest))[0]) == largest


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        pytest.param(datetime(1970, 1, 1, tzinfo=UTC), 0, id="epoch"),
        pytest.param(datetime(1969, 12, 31, tzinfo=UTC), 0, id="before the epoch"),
        pytest.param(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))), 0, id="earliest with an offset"),
        pytest.param(datetime(2026, 1, 1, tzinfo=UTC), 1767225600000, id="whole second"),
        pytest.param(datetime(2026, 1, 1, 0, 0, 0, 1000, tzinfo=UTC), 1767225600001, id="a millisecond"),
        pytest.param(datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2))), 1767225600000, id="offset"),
    ],
)
def test_milliseconds(time: datetime, expected: int) -> None:
    assert milliseconds(time) == expected


@given(st.datetimes(timezones=st.just(UTC)))
def test_milliseconds_fit_a_head_and_are_exact(time: datetime) -> None:
    exact = (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert milliseconds(time) == max(0, exact)
    assert milliseconds(time) < 2**48
