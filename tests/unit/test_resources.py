"""Every resource is one complete row: what can be forgotten when one is added is found here, within seconds."""

import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from itertools import islice
from typing import Any

import jsonschema_rs
import msgspec
import orjson
import pytest

from devstack.sample import SampleCrm
from docs.generate.openapi import document as openapi
from schemas import documents, events
from schemas.resources import AS_SPECIFIED, BY_TOPIC, CONTACT, KINDS, LEAD, RESOURCES, Resource
from tests.harness import crm
from tests.harness.expected import documents_of

ELSEWHERE = timezone(timedelta(hours=5, minutes=30))


def nothing(value: Any, path: str = "") -> Iterator[str]:
    """The paths of Struct fields that are not set, or are what an absent field may become: False, 0 or empty."""
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from nothing(getattr(value, field), f"{path}.{field}")
    elif isinstance(value, list) and value:
        for item in value:
            yield from nothing(item, f"{path}[]")
    elif value is msgspec.UNSET or not value:
        yield path


def elsewhere(entity: events.Entity) -> events.Entity:
    """The same event with every time in another time zone."""
    times = re.compile(r'(?<=")\d{4}-\d\d-\d\dT[^"]*(?=")')
    text = msgspec.json.encode(entity).decode()
    moved = times.sub(lambda time: datetime.fromisoformat(time[0]).astimezone(ELSEWHERE).isoformat(), text)
    return msgspec.json.decode(moved, type=type(entity))


def message(resource: Resource, entity: events.Entity) -> crm.Message:
    return crm.changed(resource, msgspec.to_builtins(entity))


def document(resource: Resource, entity: events.Entity) -> bytes:
    """The JSON of the document that an event becomes; a lead has no contact in it."""
    [found] = documents_of([message(resource, entity).record()]).values()
    return found


def structs(module: Any, field: str) -> set[str]:
    """The names of the Structs in a module that have this field."""
    found = {name: struct for name, struct in vars(module).items() if isinstance(struct, type)}
    return {name for name, struct in found.items() if field in getattr(struct, "__struct_fields__", ())}


def test_no_two_rows_share_a_name() -> None:
    for names in ([kind.noun for kind in KINDS], [kind.topic for kind in KINDS]):
        assert len(set(names)) == len(names), "each row in schemas/resources.py needs a noun and a topic of its own"
    letters = [resource.letter for resource in RESOURCES]
    how = "each row in schemas/resources.py needs its own letter, a to z, but not i: the index of a contact's leads"
    assert len({*letters, b"i"}) == len(letters) + 1, how
    assert [letter for letter in letters if not re.fullmatch(b"[a-z]", letter)] == [], how


def test_every_entity_and_every_document_has_a_row() -> None:
    """An event or a document that no row names would be published or described in vain."""
    entities = structs(events, "organization_id") - {"Entity", "Deleted"}
    assert entities - {kind.event.__name__ for kind in KINDS} == set(), "add a row to schemas/resources.py"
    found = structs(documents, "organization_id")
    assert found - {resource.document.__name__ for resource in RESOURCES} == set(), "add a row to schemas/resources.py"


def test_every_event_is_described() -> None:
    """In its JSON Schema, for producers."""
    without = [kind.event.__name__ for kind in KINDS if not kind.event.__doc__]
    assert without == [], "give them a docstring in schemas/events.py"


def test_people_read_leads_first() -> None:
    """The order of the specification, in the OpenAPI document and on the command line."""
    assert (AS_SPECIFIED[:2], {*AS_SPECIFIED}) == ((LEAD, CONTACT), {*RESOURCES})


each_resource = pytest.mark.parametrize("resource", RESOURCES, ids=lambda resource: resource.topic)


@each_resource
def test_the_examples_set_every_field(resource: Resource) -> None:
    """Else the OpenAPI document, and the guard of `mapping.VERSION`, would miss a field."""
    own = "the row names examples of another resource"
    assert (type(resource.event_example), type(resource.example)) == (resource.event, resource.document), own
    how = "set each field in schemas/examples.py to something other than null, False, 0 or empty"
    assert [*nothing(resource.event_example), *nothing(resource.example)] == [], how


@each_resource
def test_the_example_event_becomes_the_example_document(resource: Resource) -> None:
    records = [message(each, each.event_example).record(offset) for offset, each in enumerate(RESOURCES)]
    entity = resource.event_example
    found = documents_of(records).get((resource, entity.organization_id, entity.id))
    how = "set the field in projector/mapping.py"
    assert found, how
    assert orjson.loads(found) == orjson.loads(msgspec.json.encode(resource.example)), how


@each_resource
def test_documents_show_times_in_utc(resource: Resource) -> None:
    """Event times come with any offset."""
    example = resource.event_example
    moved = elsewhere(example)
    has_times = any(isinstance(getattr(example, field), datetime) for field in example.__struct_fields__)
    assert (msgspec.json.encode(moved) != msgspec.json.encode(example)) == has_times
    found, expected = (orjson.loads(document(resource, entity)) for entity in (moved, example))
    assert found == expected, "use _utc() in projector/mapping.py"


@each_resource
def test_documents_are_as_described(resource: Resource) -> None:
    """Also if every optional field of the event is absent: encoding does not check types."""
    schema = {"$ref": f"#/components/schemas/{resource.document.__name__}", "components": openapi()["components"]}
    for entity in (resource.event_example, crm.minimal(resource)):
        jsonschema_rs.validate(schema, orjson.loads(document(resource, entity)), validate_formats=True)


def test_ids_come_first_in_a_document() -> None:
    """The layout finds them by position."""
    for resource in RESOURCES:
        first = ("id", "organization_id", "contact_id")[: 3 if resource is LEAD else 2]
        assert resource.document.__struct_fields__[: len(first)] == first, f"put {first} first in schemas/documents.py"


def test_the_summary_is_a_part_of_the_contact() -> None:
    """By name, with the same types."""
    contact = msgspec.structs.fields(documents.Contact)
    types = {field.name: field.type for field in contact}
    assert {
        field.name: field.type for field in msgspec.structs.fields(documents.ContactSummary)
    }.items() <= types.items()
    assert CONTACT.document is documents.Contact


def test_the_sample_has_every_kind_and_changes_every_resource() -> None:
    """`make run` shows data that keeps changing, and every field of it."""
    sample = SampleCrm()
    initial = [*sample.initial()]
    missing = set(BY_TOPIC) - {message.topic for message in initial}
    assert missing == set(), "let SampleCrm.initial in devstack/sample.py yield some"
    changes = [*islice(sample.changes(), 2000)]
    missing = {resource.topic for resource in RESOURCES} - {each.topic for each in changes}
    assert missing == set(), "let SampleCrm.changes in devstack/sample.py change some"
    for resource in RESOURCES:
        own = [each for each in (*initial, *changes) if each.topic == resource.topic and each.value]
        written = [entity for each in own if (entity := entity_of(resource, each.value or b""))]
        shown = {path for entity in written for path in filled(entity)}
        missing = {*filled(resource.event_example)} - shown
        assert missing == set(), f"devstack/entities.py: let some {resource.topic} have these fields"


def entity_of(resource: Resource, value: bytes) -> events.Entity | None:
    """Returns what an event says; None for a deletion."""
    event = orjson.loads(value)
    return msgspec.convert(event["data"], resource.event) if event["type"].endswith(".changed") else None


def filled(value: Any, path: str = "") -> Iterator[str]:
    """Yields the paths of the fields of a Struct, and of those in it, that are not empty."""
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from filled(getattr(value, field), f"{path}.{field}")
    elif isinstance(value, list):
        for item in value:
            yield from filled(item, path)
    if value not in (None, [], {}):
        yield path
