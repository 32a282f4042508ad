"""Message keys (contract section 3): canonical UUIDs in lower case, and nothing else."""

import msgspec
import pytest

from projector.errors import BadRecord
from projector.record import EntityKey, Kind, Record, entity_key
from tests import crm

ORGANIZATION, LEAD = crm.ORGANIZATION.encode(), crm.LEAD.encode()
BOTH = ORGANIZATION + b":" + LEAD


@pytest.mark.parametrize(
    ("kind", "key", "expected"),
    [
        pytest.param(Kind.LEAD, BOTH, EntityKey(crm.ORGANIZATION, crm.LEAD), id="organization and entity"),
        pytest.param(
            Kind.ORGANIZATION, ORGANIZATION, EntityKey(crm.ORGANIZATION, crm.ORGANIZATION), id="an organization alone"
        ),
    ],
)
def test_good_keys(kind: Kind, key: bytes, expected: EntityKey) -> None:
    assert entity_key(_with_key(kind, key)) == expected


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        pytest.param(Kind.LEAD, None, id="no key"),
        pytest.param(Kind.LEAD, b"", id="an empty key"),
        pytest.param(Kind.LEAD, ORGANIZATION, id="an organization where an entity is due"),
        pytest.param(Kind.ORGANIZATION, BOTH, id="an entity where an organization is due"),
        pytest.param(Kind.LEAD, BOTH.upper(), id="upper case"),
        pytest.param(Kind.LEAD, BOTH + b"\n", id="a line feed after it"),
        pytest.param(Kind.LEAD, b" " + BOTH, id="a space before it"),
        pytest.param(Kind.LEAD, BOTH.replace(b":", b"/"), id="another separator"),
        pytest.param(Kind.LEAD, BOTH + b":" + LEAD, id="a third id"),
        pytest.param(Kind.LEAD, b"{" + ORGANIZATION + b"}:" + LEAD, id="braces"),
        pytest.param(Kind.LEAD, BOTH.replace(b"-", b""), id="no hyphens"),
        pytest.param(Kind.LEAD, BOTH[:-1] + "\N{ARABIC-INDIC DIGIT ONE}".encode(), id="a digit of another script"),
        pytest.param(Kind.LEAD, b"\xff" * 73, id="no UTF-8"),
    ],
)
def test_bad_keys(kind: Kind, key: bytes | None) -> None:
    with pytest.raises(BadRecord, match="message key is not <organization_id>"):
        entity_key(_with_key(kind, key))


def _with_key(kind: Kind, key: bytes | None) -> Record:
    return msgspec.structs.replace(crm.tombstone(kind).record(), key=key)
