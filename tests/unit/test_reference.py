"""The reference itself, by hand: it is what everything else is compared with."""

import msgspec
import orjson
import pytest

from projector.record import Record
from projector.reference import Reference
from schemas import resources
from tests.harness import crm
from tests.harness.expected import documents, documents_of, key_expiries

LEAD = (resources.LEAD, crm.ORGANIZATION, crm.LEAD)
CONTACT = (resources.CONTACT, crm.ORGANIZATION, crm.CONTACT)


def stage(*records: Record) -> str | None:
    """The stage of the lead after these records; None where there is none."""
    body = documents_of(records).get(LEAD)
    return orjson.loads(body)["stage"] if body else None


def new(version: int, offset: int, partition: int = 0, seconds: float = 0) -> Record:
    return crm.lead(version, stage="NEW", seconds=seconds).record(offset, partition)


def stale(version: int, offset: int, partition: int = 0, seconds: float = 0) -> Record:
    return crm.lead(version, stage="STALE", seconds=seconds).record(offset, partition)


def gone(offset: int, partition: int = 0, seconds: float = 0) -> Record:
    return crm.tombstone(resources.LEAD, seconds=seconds).record(offset, partition)


def deleted(version: int, offset: int) -> Record:
    return crm.deleted(resources.LEAD, version).record(offset)


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        pytest.param([], None, id="nothing"),
        pytest.param([new(1, 0)], "NEW", id="one event"),
        pytest.param([new(1, 0), stale(2, 1)], "STALE", id="a newer version"),
        pytest.param([new(9, 0), stale(10, 1)], "STALE", id="9 to 10"),
        pytest.param([new(2, 0), stale(1, 1)], "NEW", id="an older version"),
        pytest.param([new(2, 0), stale(2, 1)], "NEW", id="the same version"),
        pytest.param([new(1, 0), deleted(2, 1)], None, id="deleted"),
        pytest.param([deleted(2, 0), new(1, 1)], None, id="an older version after a delete"),
        pytest.param([deleted(2, 0), new(3, 1)], "NEW", id="created again"),
        pytest.param([new(7, 0), gone(1)], None, id="a tombstone"),
        pytest.param([new(7, 0), gone(1), new(7, 2)], None, id="the version before a tombstone is not enough"),
        pytest.param([new(7, 0), gone(1), new(8, 2)], "NEW", id="created again after a tombstone"),
        pytest.param([new(7, 5), gone(3)], "NEW", id="a tombstone that was applied before"),
        pytest.param([gone(3), new(7, 1)], None, id="an event from before the tombstone"),
        pytest.param([new(7, 5, 0, 10), gone(1, 1, 20)], None, id="a later tombstone from another partition"),
        pytest.param([new(7, 5, 0, 10), gone(9, 1, 5)], "NEW", id="an earlier tombstone from another partition"),
        pytest.param([gone(9, 1, 5), new(7, 5, 0, 10)], "NEW", id="an event later than another partition's tombstone"),
        pytest.param([new(7, 5, 0, 10), gone(1, 1, 10)], None, id="a tombstone of the same time"),
        pytest.param([gone(1, 1, 10), new(7, 5, 0, 10)], None, id="an event of the same time as a tombstone"),
        pytest.param(
            [gone(0, 0, 10), gone(0, 1, 10), new(7, 1, 0, 10)], None, id="an event of the same time as two tombstones"
        ),
        pytest.param([gone(0, 0, 10), gone(0, 1, 10), new(7, 1, 0, 11)], "NEW", id="an event after two tombstones"),
    ],
)
def test_the_newest_event_decides(records: list[Record], expected: str | None) -> None:
    assert stage(*records) == expected


@pytest.mark.parametrize(
    ("contacts", "expected"),
    [
        pytest.param([], None, id="never heard of"),
        pytest.param([crm.contact(1)], "Ada", id="one event"),
        pytest.param([crm.contact(1), crm.contact(2, first_name="Grace")], "Grace", id="changed"),
        pytest.param([crm.contact(1), crm.deleted(resources.CONTACT, 2)], None, id="deleted"),
        pytest.param([crm.contact(1, organization_id=crm.OTHER_ORGANIZATION)], None, id="of another organization"),
    ],
)
@pytest.mark.parametrize("lead_first", [pytest.param(True, id="lead first"), pytest.param(False, id="lead last")])
def test_lead_shows_its_contact_as_it_is_now(
    contacts: list[crm.Message], expected: str | None, lead_first: bool
) -> None:
    records = [message.record(offset) for offset, message in enumerate(contacts)]
    lead = crm.lead().record()
    body = documents_of([lead, *records] if lead_first else [*records, lead])[LEAD]
    shown = orjson.loads(body)["contact"]
    assert (shown and shown["first_name"]) == expected


@pytest.mark.parametrize(
    ("organizations", "expected"),
    [
        pytest.param([], {LEAD, CONTACT}, id="never heard of: documents without access"),
        pytest.param([crm.organization(1, api_access=False)], {LEAD, CONTACT}, id="no access"),
        pytest.param([crm.organization(1), crm.deleted(resources.ORGANIZATION, 2)], set(), id="deleted"),
        pytest.param([crm.tombstone(resources.ORGANIZATION)], set(), id="deleted by a tombstone"),
        pytest.param(
            [crm.deleted(resources.ORGANIZATION, 1), crm.organization(2)], {LEAD, CONTACT}, id="created again"
        ),
    ],
)
def test_deleted_organization_has_no_documents(organizations: list[crm.Message], expected: set[object]) -> None:
    records = [message.record(offset) for offset, message in enumerate(organizations)]
    assert documents_of([crm.lead().record(), *records, crm.contact().record()]).keys() == expected


KEY_1, KEY_2 = crm.API_KEY, crm.uuid(0xF2)
FIRST, SECOND = crm.key_hash(1), crm.key_hash(2)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        pytest.param([crm.api_key(hash=FIRST)], {FIRST: 0}, id="never expires"),
        pytest.param([crm.api_key(hash=FIRST, expires_at=crm.at(60))], {FIRST: crm.at_ms(60)}, id="expires"),
        pytest.param([crm.api_key(hash=FIRST, status="revoked")], {FIRST: 1}, id="revoked"),
        pytest.param([crm.api_key(1, hash=FIRST), crm.api_key(2, hash=SECOND)], {SECOND: 0}, id="another hash"),
        pytest.param([crm.api_key(1, hash=FIRST), crm.deleted(resources.API_KEY, 2)], {}, id="deleted"),
        pytest.param(
            [crm.api_key(id=KEY_1, hash=FIRST), crm.api_key(id=KEY_2, hash=FIRST, expires_at=crm.at(60))],
            {FIRST: crm.at_ms(60)},
            id="two with one hash: the earlier expiry",
        ),
        pytest.param(
            [crm.api_key(id=KEY_1, hash=FIRST, status="revoked"), crm.api_key(id=KEY_2, hash=FIRST)],
            {FIRST: 1},
            id="two with one hash: a revoked one decides",
        ),
        pytest.param(
            [crm.api_key(hash=FIRST), crm.deleted(resources.ORGANIZATION, 1)], {}, id="of a deleted organization"
        ),
    ],
)
def test_newest_records_decide_when_a_key_expires(messages: list[crm.Message], expected: dict[str, int]) -> None:
    reference = Reference()
    for offset, message in enumerate(messages):
        reference.add(message.record(offset))
    assert key_expiries(reference) == {(crm.ORGANIZATION, key_hash): expiry for key_hash, expiry in expected.items()}


def test_bad_records_change_nothing() -> None:
    bad = [
        crm.lead(2, stage="WRONG").record(1),
        crm.lead(3, created_at="0001-01-01T00:00:00+05:00").record(2),
        msgspec.structs.replace(crm.tombstone(resources.LEAD).record(3), key=b"x"),
    ]
    assert stage(new(1, 0), *bad) == "NEW"


def test_reference_asked_between_records_is_current() -> None:
    reference = Reference()
    reference.add(new(1, 0))
    assert documents(reference).keys() == {LEAD}
    reference.add(crm.contact().record())
    assert reference.document(CONTACT) == documents(reference)[CONTACT]
    reference.add(deleted(2, 1))
    assert ({*documents(reference)}, reference.document(LEAD)) == ({CONTACT}, None)
