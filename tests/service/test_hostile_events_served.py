"""Events with odd things in them, all the way: what is accepted is stored as the reference says, and served as JSON."""

import random

import msgspec
import pytest

from projector.change import read
from projector.errors import BadRecord
from projector.mapping import intent
from projector.record import Record
from schemas import api_keys, resources
from tests.harness import crm, stored
from tests.harness.api_server import CONTACTS, LEADS, ApiServer
from tests.harness.crm import CONTACT, LEAD, ORGANIZATION, Message
from tests.harness.expected import documents_of
from tests.harness.hostile_events import MORSELS, VALID, tokens
from tests.harness.projection import Projection

KEY = api_keys.mint(ORGANIZATION, "h" * 30)
PATHS: dict[resources.Kind, str] = {resources.LEAD: LEADS + LEAD, resources.CONTACT: CONTACTS + CONTACT}
BASES = [VALID[place] for place in (0, 1, 5, 6)]


def accepted(base: Message, number: int) -> list[Record]:
    """So many different records that are none too odd, each of a higher version."""
    chance, found = random.Random(number), dict[bytes, Record]()
    while len(found) < number:
        value = base.value or b""
        start, end = chance.choice(tokens(value))
        value = value[:start] + chance.choice(MORSELS) + value[end:]
        version = len(found) + 2
        value = value.replace(b'"version":1', b'"version":%d' % version, 1)
        record = msgspec.structs.replace(base, value=value).record(offset=version)
        if is_accepted(record, version):
            found[value] = record
    return list(found.values())


def is_accepted(record: Record, version: int) -> bool:
    try:
        change = read(record)
        intent(change, record)
    except BadRecord:
        return False
    return change.entity is not None and change.entity.version == version


@pytest.mark.parametrize(
    "base", BASES, ids=["a lead", "a contact", "a lead in binary mode", "a contact in binary mode"]
)
async def test_what_is_accepted_is_served(projection: Projection, served: ApiServer, base: Message) -> None:
    await projection.apply(crm.organization().record(), crm.api_key(hash=api_keys.key_hash(KEY)).record())
    own = crm.contact() if base.kind is resources.LEAD else crm.lead()
    await projection.apply(own.record())
    for record in accepted(base, 25):
        await projection.apply(record)
        expected = documents_of([own.record(), record])
        assert projection.documents() == expected
        answer = served.get(PATHS[base.kind], key=KEY)
        assert answer.status == 200
        assert answer.body == expected[(base.kind, ORGANIZATION, LEAD if base.kind is resources.LEAD else CONTACT)]
        assert answer.json["organization_id"] == ORGANIZATION
    stored.assert_consistent(projection.client)
