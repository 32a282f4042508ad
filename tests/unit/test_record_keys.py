"""Message keys (contract section 3): canonical UUIDs in lower case, and nothing else."""

import msgspec
import pytest

from projector.errors import BadRecord
from projector.record import EntityKey, Record, entity_key
from schemas import resources
from tests.harness import crm

ORGANIZATION, LEAD = crm.ORGANIZATION.encode(), crm.LEAD.encode()
BOTH = ORGANIZATION + b":" + LEAD


@pytest.mark.parametrize(
    ("kind", "key", "expected"),
    [
        pytest.param(resources.LEAD, BOTH, EntityKey(crm.ORGANIZATION, crm.LEAD), id="organization and entity"),
        pytest.param(
            resources.ORGANIZATION,
            ORGANIZATION,
            EntityKey(crm.ORGANIZATION, crm.ORGANIZATION),
            id="an organization alone",
        ),
    ],
)
def test_good_keys(kind: resources.Kind, key: bytes, expected: EntityKey) -> None:
    assert entity_key(_with_key(kind, key)) == expected


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        pytest.param(resources.LEAD, None, id="no key"),
        pytest.param(resources.LEAD, b"", id="an empty key"),
        pytest.param(resources.LEAD, ORGANIZATION, id="an organization where an entity is due"),
        pytest.param(resources.ORGANIZATION, BOTH, id="an entity where an organization is due"),
        pytest.param(resources.LEAD, BOTH.upper(), id="upper case"),
        pytest.param(resources.LEAD, BOTH + b"\n", id="a line feed after it"),
        pytest.param(resources.LEAD, b" " + BOTH, id="a space before it"),
        pytest.param(resources.LEAD, BOTH.replace(b":", b"/"), id="another separator"),
        pytest.param(resources.LEAD, BOTH + b":" + LEAD, id="a third id"),
        pytest.param(resources.LEAD, b"{" + ORGANIZATION + b"}:" + LEAD, id="braces"),
        pytest.param(resources.LEAD, BOTH.replace(b"-", b""), id="no hyphens"),
        pytest.param(resources.LEAD, BOTH[:-1] + "\N{ARABIC-INDIC DIGIT ONE}".encode(), id="a digit of another script"),
        pytest.param(resources.LEAD, b"\xff" * 73, id="no UTF-8"),
    ],
)
def test_bad_keys(kind: resources.Kind, key: bytes | None) -> None:
    with pytest.raises(BadRecord, match="message key is not <organization_id>"):
        entity_key(_with_key(kind, key))


def _with_key(kind: resources.Kind, key: bytes | None) -> Record:
    return msgspec.structs.replace(crm.tombstone(kind).record(), key=key)
