"""How data lies in Redis. Names of keys: what each looks like, that none is another's, and that all stay in their
organization. Values: the head, the positions inside bodies that Lua relies on, and content hashes.
"""

import fnmatch
import struct
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from schemas import api_keys, examples, layouts, names, resources
from schemas.control import GenerationId, new_generation, number_of
from schemas.layouts import Head, content_hash, milliseconds, read_head, write_head
from tests.harness.generations import generation

ORGANIZATION = "00000000-0000-0000-0000-00000000003e"
TAG = b"lv3{0000000000000000000010}"
ID = "ffffffff-ffff-ffff-ffff-fffffffffffe"
SHORT = b"/////////////////////g"
HASH = "ab" * 32
OWNER = names.organization(ORGANIZATION)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(OWNER, TAG, id="organization"),
        pytest.param(names.api_key(OWNER, HASH), TAG + b"k" + HASH.encode(), id="api key"),
        pytest.param(names.api_key_entity(OWNER, ID), TAG + b"a" + SHORT, id="api key entity"),
        pytest.param(names.organization_limit(OWNER), TAG + b"q", id="limit of an organization"),
        pytest.param(names.key_limit(OWNER, HASH), TAG + b"q" + HASH.encode(), id="limit of a key"),
        pytest.param(names.document(resources.LEAD, OWNER, generation(1), ID), TAG + b"1.Test00l" + SHORT, id="lead"),
        pytest.param(
            names.document(resources.CONTACT, OWNER, generation(12), ID), TAG + b"12.Test00c" + SHORT, id="contact"
        ),
        pytest.param(
            names.contact_leads(OWNER, generation(3), ID), TAG + b"3.Test00i" + SHORT, id="leads of a contact"
        ),
        pytest.param(names.CONTROL, b"lv3{ledger}:control", id="control record"),
        pytest.param(names.WRITERS, b"lv3{ledger}:writers", id="writers"),
        pytest.param(names.DEAD_LETTERS, b"lv3{ledger}:dead-letters", id="dead letters"),
        pytest.param(names.JOBS, b"lv3:tasks", id="jobs"),
        pytest.param(names.LATENCY, b"lv3:latency", id="latency"),
        pytest.param(names.rebuild(generation(2)), b"lv3{ledger}:rebuild:2.Test00", id="ledger of a rebuild"),
        pytest.param(names.job_lock("erase", ORGANIZATION), b"lv3:task:" + TAG[3:] + b":erase", id="lock of a job"),
    ],
)
def test_name_of_a_key_begins_with_the_prefix(name: bytes, expected: bytes) -> None:
    assert (name, name[: len(names.PREFIX)]) == (expected, names.PREFIX)


def test_field_name_has_topic_partition_and_offset() -> None:
    found = names.position("crm.leads", 3), names.dead_letter("crm.leads", 3, 42), names.target("crm.leads", 3)
    assert found == ("crm.leads:3", "crm.leads:3:42", "target:crm.leads:3")


def all_names(organization_id: str, generation: GenerationId, entity_id: str, key_hash: str) -> list[bytes]:
    owner = names.organization(organization_id)
    return [
        owner,
        names.organization_limit(owner),
        names.api_key(owner, key_hash),
        names.key_limit(owner, key_hash),
        names.api_key_entity(owner, entity_id),
        *(names.document(resource, owner, generation, entity_id) for resource in resources.RESOURCES),
        names.contact_leads(owner, generation, entity_id),
    ]


uuids = st.uuids().map(str)
generations = st.integers(1, 10**6).map(new_generation)
arguments = st.tuples(uuids, generations, uuids, st.binary(min_size=32, max_size=32).map(bytes.hex))


@given(arguments, arguments)
def test_no_two_things_share_a_name(
    one: tuple[str, GenerationId, str, str], other: tuple[str, GenerationId, str, str]
) -> None:
    assert len(set(all_names(*one))) == len(all_names(*one))
    if one[0] != other[0]:
        assert set(all_names(*one)).isdisjoint(all_names(*other))


@given(arguments)
def test_patterns_find_what_they_say_and_nothing_else(given_arguments: tuple[str, GenerationId, str, str]) -> None:
    """`fnmatch` reads these patterns as Redis does."""
    organization_id, generation, *_ = given_arguments
    everything = all_names(*given_arguments)
    for pattern, found in (
        (names.of_generation(generation), everything[5:]),
        (names.of_generation(new_generation(number_of(generation))), []),
        (names.of_organization(names.organization(organization_id)), everything[1:]),
    ):
        assert fnmatch.filter(everything, pattern) == found


@given(arguments)
def test_name_of_a_document_is_read_back(given_arguments: tuple[str, GenerationId, str, str]) -> None:
    organization_id, generation, entity_id, _ = given_arguments
    found = [names.IN_GENERATION.fullmatch(name) for name in all_names(*given_arguments)]
    assert found[:5] == [None] * 5
    for match, kind in zip(found[5:], (*(resource.letter for resource in resources.RESOURCES), b"i"), strict=True):
        assert match
        ids = names.organization_id(match[1]), names.long_id(match[4])
        assert (*match.groups()[1:3], *ids) == (generation.encode(), kind, organization_id, entity_id)


@given(uuids, uuids)
def test_id_comes_back_from_each_form(text: str, other: str) -> None:
    short, organization = names.short_id(text), names.organization(text)
    assert (len(short), names.long_id(short)) == (22, text)
    assert (names.short_ids([text, other]), names.short_ids([])) == ([short, names.short_id(other)], [])
    assert (names.short_id(text.upper()), names.organization(text.upper())) == (short, organization)
    tag = api_keys.parse(api_keys.mint(text)).organization_tag
    assert (names.tagged(tag), organization[layouts.NAME_TAG]) == (organization, tag.encode())


def test_documents_fit_the_size_class_they_are_made_for() -> None:
    assert len(names.document(resources.LEAD, OWNER, generation(999), ID)) <= 60


@pytest.mark.parametrize(
    ("tag", "slot"),
    [
        pytest.param(b"123456789", 12739, id="the example of Redis's specification"),
        pytest.param(names.HOME, 2466, id="ledger"),
    ],
)
def test_slot_of_a_tag_is_that_of_redis(tag: bytes, slot: int) -> None:
    assert names.tag_slot(tag) == slot


def test_every_slot_has_a_short_tag() -> None:
    tags = [names.slot_tag(slot) for slot in range(names.SLOTS)]
    assert [names.tag_slot(tag) for tag in tags] == list(range(names.SLOTS))
    assert max(map(len, tags)) <= 6


@pytest.mark.parametrize(
    ("ledger", "expected"),
    [
        pytest.param(names.CONTROL, b"lv3{17}:control", id="the control record's"),
        pytest.param(names.rebuild(generation(3)), b"lv3{17}:rebuild:3.Test00", id="a rebuild's"),
    ],
)
def test_name_of_a_copy_has_its_tag(ledger: bytes, expected: bytes) -> None:
    assert (names.copy(ledger, b"17"), names.copy(ledger, names.HOME)) == (expected, ledger)


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
        pytest.param(write_head(b"L", 1, 2, 3, 4), Head(True, 1, 2, 3, 4), id="written in Python"),
        pytest.param(write_head(b"L", 1, 2, 3, -1), Head(True, 1, 2, 3, 0), id="a time before 1970, as Kafka allows"),
    ],
)
def test_head_of_a_value_is_read(value: bytes, expected: Head) -> None:
    assert read_head(value) == expected


@given(st.binary(max_size=60))
def test_read_head_answers_or_refuses_any_bytes(value: bytes) -> None:
    if len(value) >= layouts.HEAD:
        assert read_head(value).live is (value[:1] == b"L")
    else:
        with pytest.raises(ValueError, match="does not begin with a head"):
            read_head(value)


def test_sections_follow_each_other() -> None:
    etag = slice(layouts.HEAD, layouts.HEAD + 2 * layouts.HASH_BYTES)
    contact_body = etag.stop + 3 + layouts.HASH_BYTES + len(names.short_id(examples.CONTACT_ID))
    assert (etag, etag.stop + 3 + 3, contact_body) == (layouts.ETAG, layouts.LEAD_BODY, layouts.CONTACT_BODY)
    assert slice(etag.stop + 3, contact_body) == layouts.FIRST_LEAD


@given(st.binary(), st.binary())
def test_content_hash_differs_with_the_content(one: bytes, other: bytes) -> None:
    assert len(content_hash(one)) == layouts.HASH_BYTES
    assert content_hash(one) != layouts.NO_CONTACT
    assert (content_hash(one) == content_hash(other)) is (one == other)


def test_content_hash_is_exact_as_the_score_of_a_sorted_set() -> None:
    largest = int.from_bytes(b"\xff" * layouts.HASH_BYTES, "little")
    assert int(struct.unpack("<d", struct.pack("<d", largest))[0]) == largest


@given(st.datetimes(timezones=st.integers(-14, 14).map(lambda hours: timezone(timedelta(hours=hours)))))
@example(datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))))
@example(datetime(1969, 12, 31, tzinfo=UTC))
@example(datetime(1970, 1, 1, tzinfo=UTC))
@example(datetime(2026, 1, 1, 2, 0, 0, 1000, tzinfo=timezone(timedelta(hours=2))))
def test_milliseconds_fit_a_head_and_are_exact(time: datetime) -> None:
    """Those since 1970, whatever the offset; 0 for what is before."""
    exact = (time - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert milliseconds(time) == max(0, exact) < 2**48
