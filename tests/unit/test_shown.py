"""When a document shows a record already, so that the record need not be decoded again."""

import orjson
import pytest
from msgspec.structs import replace

from projector import mapping
from projector.change import read
from projector.intent import DeleteDocument, PutLead
from projector.line.batch import event_time, is_stale
from projector.record import Record
from schemas import resources
from tests.harness import crm

LEAD = crm.lead(7, seconds=5).record(3, partition=2)
DELETED = crm.deleted(resources.LEAD, 7, seconds=5).record(3, partition=2)
GONE = crm.tombstone(resources.LEAD, seconds=5).record(3, partition=2)


def head_of(record: Record) -> bytes:
    intent = mapping.intent(read(record), record)
    assert isinstance(intent, PutLead | DeleteDocument)
    return intent.head if isinstance(intent, PutLead) else intent.value


@pytest.mark.parametrize(
    ("record", "stored"),
    [
        pytest.param(LEAD, LEAD, id="a lead"),
        pytest.param(crm.binary(crm.lead(7, seconds=5)).record(3, partition=2), LEAD, id="a lead, in binary mode"),
        pytest.param(DELETED, DELETED, id="a deleted lead"),
        pytest.param(GONE, GONE, id="a tombstone"),
        pytest.param(
            replace(LEAD, value=orjson.dumps(orjson.loads(LEAD.value or b""), option=orjson.OPT_INDENT_2)),
            LEAD,
            id="a lead, with spaces in its JSON",
        ),
    ],
)
def test_a_record_is_shown(record: Record, stored: Record) -> None:
    assert event_time(record, head_of(stored)) == crm.at_ms(5)


@pytest.mark.parametrize(
    ("record", "stored"),
    [
        pytest.param(LEAD, replace(LEAD, offset=4), id="a later offset"),
        pytest.param(LEAD, replace(LEAD, partition=1), id="another partition"),
        pytest.param(LEAD, crm.lead(8).record(3, partition=2), id="the topic was recreated: another version"),
        pytest.param(crm.lead(70).record(3, 2), crm.lead(7).record(3, 2), id="a version that begins alike"),
        pytest.param(GONE, LEAD, id="the topic was recreated: now a tombstone"),
        pytest.param(LEAD, GONE, id="the topic was recreated: a tombstone then"),
        pytest.param(
            crm.lead(8, attribution={"version": 7}).record(3, 2),
            LEAD,
            id="the topic was recreated: the version stands in the attribution",
        ),
        pytest.param(
            crm.binary(crm.lead(8, attribution={"version": 7})).record(3, 2), LEAD, id="the same, in binary mode"
        ),
        pytest.param(replace(LEAD, value=b'{"version":7}'), LEAD, id="the version stands outside of the data"),
        pytest.param(replace(LEAD, value=b'{"data":{"version":"7"}}'), LEAD, id="the version is a text"),
        pytest.param(replace(LEAD, value=b'{"data":' + b"[" * 100_000), LEAD, id="nested deeply"),
        pytest.param(replace(LEAD, value=b"\xff"), LEAD, id="the topic was recreated: bad now"),
    ],
)
def test_a_record_is_not_shown(record: Record, stored: Record) -> None:
    assert event_time(record, head_of(stored)) is None


@pytest.mark.parametrize(
    "record",
    [
        pytest.param(LEAD, id="a lead"),
        pytest.param(GONE, id="a tombstone"),
        pytest.param(crm.lead(7, schema={"version": 0}).record(0), id="a version 0 of something else"),
        pytest.param(crm.lead(0).record(0), id="a bad record"),
    ],
)
def test_nothing_is_shown_where_nothing_is_stored(record: Record) -> None:
    """The answer is zeros then: also the offset and partition of a topic's first record."""
    assert event_time(replace(record, offset=0, partition=0), bytes(22)) is None


@pytest.mark.parametrize(
    ("record", "stored", "stale"),
    [
        pytest.param(crm.lead(7).record(9), LEAD, True, id="the same version, published again"),
        pytest.param(crm.lead(6).record(9), LEAD, True, id="an older version"),
        pytest.param(crm.lead(8).record(9), LEAD, False, id="a newer version"),
        pytest.param(crm.lead(256).record(9), LEAD, False, id="a newer version whose last byte is lower"),
        pytest.param(crm.lead(7).record(9), DELETED, True, id="the version that deleted it"),
        pytest.param(crm.lead(8).record(9), DELETED, False, id="created again"),
        pytest.param(crm.deleted(resources.LEAD, 6).record(9), LEAD, True, id="an older delete"),
        pytest.param(crm.deleted(resources.LEAD, 8).record(9), LEAD, False, id="a delete"),
        pytest.param(GONE, LEAD, False, id="a tombstone: the script compares offsets"),
        pytest.param(crm.lead(6).record(9), GONE, False, id="after a tombstone, too"),
    ],
)
def test_what_is_certainly_stale(record: Record, stored: Record, *, stale: bool) -> None:
    assert is_stale(mapping.intent(read(record), record), head_of(stored)) is stale


def test_nothing_is_stale_where_nothing_is_stored() -> None:
    assert not is_stale(mapping.intent(read(LEAD), LEAD), bytes(22))
    organization = crm.organization(1).record(0)
    assert not is_stale(mapping.intent(read(organization), organization), head_of(LEAD))
