"""What Redis stores, read without the projector's own code: documents, and what must be true between them."""

import re
from binascii import b2a_base64
from typing import Any
from uuid import UUID

import redis

from projector.reference import Entity
from schemas import names, resources
from schemas.bodies import body
from schemas.control import GenerationId
from tests.harness import generations

NO_MARK = bytes(6)
_FIRST = generations.generation(1)


def documents(client: redis.Redis, generation: int = 1) -> dict[Entity, bytes]:
    """Returns the body of every live document of a generation."""
    return {entity: _body(entity, value) for entity, value in values(client, generation).items() if _live(value)}


def values(client: redis.Redis, generation: int = 1) -> dict[Entity, bytes]:
    """Returns the whole value of every document and marker of a generation."""
    matches = [
        names.IN_GENERATION.fullmatch(key) for key in client.scan_iter(generations.pattern(generation), count=5000)
    ]
    wanted = [match for match in matches if match and match[3] in resources.BY_LETTER]
    with client.pipeline(transaction=False) as pipeline:
        for match in wanted:
            pipeline.get(match[0])
        found = zip(wanted, pipeline.execute(), strict=True)
    return {_entity(match): value for match, value in found if value is not None}


def index(
    client: redis.Redis, contact_id: str, organization_id: str, generation: GenerationId = _FIRST
) -> dict[str, bytes]:
    """Returns the leads of a contact, each with the hash of the summary that it shows."""
    owner = names.organization(organization_id)
    contact: bytes = client.get(names.document(resources.CONTACT, owner, generation, contact_id)) or b""  # type: ignore[assignment]
    # The first lead of the index is stored in its contact's own value.
    first = {names.long_id(contact[43:65]): contact[37:43]} if _live(contact) and any(contact[37:65]) else {}
    others = {
        names.long_id(lead): int(score).to_bytes(6, "little")
        for lead, score in client.zscan_iter(names.contact_leads(owner, generation, contact_id))
    }
    assert not first.keys() & others.keys(), "a lead is in the index twice"
    assert first or not others or not _live(contact), "the index of a live contact has a first lead"
    return first | others


def assert_consistent(client: redis.Redis, generation: int = 1, *, after_crash: bool = False) -> None:
    """Assert that every live lead shows its contact as it is and is in its index, and that no index has another lead.

    After a crash, a lead may still be in the index of its former contact: its next change removes it there.
    """
    found = values(client, generation)
    assert {len(value) for value in found.values() if not _live(value)} <= {22}, "a marker is the head alone"
    leads = {entity: value for entity, value in found.items() if entity[0] is resources.LEAD and _live(value)}
    expected: dict[tuple[str, str], dict[str, bytes]] = {}
    for (_, organization_id, lead_id), value in leads.items():
        contact_id = value[40 + 116 : 40 + 152].decode()
        contact = found.get((resources.CONTACT, organization_id, contact_id), b"")
        mark = contact[28:34] if _live(contact) else NO_MARK
        assert value[28:34] == mark, f"lead {lead_id} shows another summary than its contact has"
        expected.setdefault((organization_id, contact_id), {})[lead_id] = mark
    sets = [
        names.IN_GENERATION.fullmatch(name) for name in client.scan_iter(generations.pattern(generation), count=5000)
    ]
    places = {
        (names.organization_id(match[1]), names.long_id(match[4])) for match in sets if match and match[3] == b"i"
    }
    places |= {(organization_id, id_) for (kind, organization_id, id_) in found if kind is resources.CONTACT}
    tags = {match[2] for match in sets if match} or {_FIRST.encode()}
    assert len(tags) == 1, "two generations have this number"
    [identity] = [GenerationId(tag.decode()) for tag in tags]
    for place in places:
        leads_there = index(client, place[1], place[0], identity)
        own = expected.pop(place, {})
        if after_crash:
            leads_there = {lead_id: mark for lead_id, mark in leads_there.items() if lead_id in own}
        assert leads_there == own, f"the index of contact {place[1]} is wrong"
    assert not expected, f"contacts without an index: {list(expected)}"


def everything(client: Any) -> bytes:
    """Returns all that Redis holds, names and values, as bytes to be searched and compared."""
    found: list[bytes] = []
    for name in sorted(client.scan_iter(count=1000)):
        found.append(name)
        match client.type(name):
            case b"string":
                found.append(client.get(name) or b"")
            case b"zset":
                found += [b"%b %d" % each for each in client.zrange(name, 0, -1, withscores=True)]
            case b"hash":
                found += sorted(map(b" ".join, client.hgetall(name).items()))
            case b"set":
                found += sorted(client.smembers(name))
            case b"none":
                pass  # it expired meanwhile
            case other:
                raise AssertionError(f"{name!r} is a {other!r}: look into it too")
    return b"\n".join(found)


def key_expiry(client: redis.Redis, name: bytes) -> int | None:
    """Returns when the key of this record expires: 0 for never, 1 if it is revoked; None if there is no record."""
    record: bytes | None = client.get(name)  # type: ignore[assignment]
    return None if record is None else int.from_bytes(record[22:28], "little")


def key_expiries(client: redis.Redis) -> dict[bytes, int]:
    """Returns when the key of each record expires, by the name of the record: 0 for never, 1 if it is revoked.

    Asserts that each record follows from its entries, and that its entries are those of the API keys with its hash.
    """
    expected: dict[bytes, set[bytes]] = {}
    for name in client.scan_iter(names.PREFIX + b"{*}a*", count=5000):
        value: bytes = client.get(name)  # type: ignore[assignment]
        if _live(value):
            expected.setdefault(name[:-23] + b"k" + value[22:], set()).add(name[-22:])
    found: dict[bytes, int] = {}
    for name in client.scan_iter(names.PREFIX + b"{*}k*", count=5000):
        record: bytes = client.get(name)  # type: ignore[assignment]
        entries = [record[at : at + 29] for at in range(28, len(record), 29)]
        assert {entry[:22] for entry in entries} == expected.pop(name, set()), f"{name!r} has other entries"
        assert entries == sorted(entries), f"the entries of {name!r} are in no order"
        found[name] = int.from_bytes(record[22:28], "little")
        assert record[:22] == names.tag(name)
        assert found[name] == _opens_until(entries)
    assert not expected, f"API keys without an entry: {expected}"
    return found


def _opens_until(entries: list[bytes]) -> int:
    if any(entry[22:23] == b"R" for entry in entries):
        return 1
    return min((expiry for entry in entries if (expiry := int.from_bytes(entry[23:], "little"))), default=0)


def short(uuid: str) -> bytes:
    """Returns an id as it is stored in an index."""
    return b2a_base64(UUID(uuid).bytes)[:22]


def _entity(match: re.Match[bytes]) -> Entity:
    return resources.BY_LETTER[match[3]], names.organization_id(match[1]), names.long_id(match[4])


def _body(entity: Entity, value: bytes) -> bytes:
    assert isinstance(entity[0], resources.Resource)
    return body(entity[0], value)


def _live(value: bytes) -> bool:
    return value[:1] == b"L"
